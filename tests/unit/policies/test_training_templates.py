"""Chats of several turns whose own template would rewrite what came before: nothing is rendered again, and a checkpoint
gets TRL's training template of the family, where that does not. Held against plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl.chat_template_utils import get_training_chat_template

from crl.cli.doctor import experiment_findings
from crl.cli.findings import _history
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.policies.chat import OWN, TRAINING, ChatFormat
from crl.policies.sources import resolve_model
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.policies.families import TRL, encoded, ids_of, template_of, tokenizer_of, tokenizer_with

ROOT = Path(__file__).parents[3]
REPLACED = ("qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "deepseek_r1_distill")
"""Families whose own template rewrites history, and whose training template does not."""
REWRITES = (
    "deepseekv3", "glm4moe", "gptoss", "lfm2_2_5", "lfm2_2_5_v2", "lfm2_2_5_vl", "nemotron_3_nano", "nemotron_3_super",
    "nemotron_3_ultra", "nemotron_3_5_lightning",
)  # fmt: skip
"""Families whose templates all do."""
THOUGHT = "<think>\nIs it north?\n</think>\n\n"
TURNS = ("You see: #.@", "You see:\n\n..@", "You see: @")


@pytest.mark.slow
def test_every_family_is_accepted_and_says_what_becomes_of_earlier_turns() -> None:
    found = {name: ChatFormat(tokenizer_of(name), name) for name in TRL}
    assert {name for name, chat in found.items() if chat.rewrites} == {*REPLACED, *REWRITES}
    for name, chat in found.items():
        assert chat.template.startswith(OWN)
        assert ("stay as they were sampled" in chat.template) == chat.rewrites
        assert (TRAINING in chat.template) == (name in REPLACED)
        template = get_training_chat_template(tokenizer_of(name)) if name in REPLACED else template_of(name)
        assert chat.written.endswith(template)


@pytest.mark.parametrize("name", REPLACED)
def test_a_chat_is_the_rendering_of_the_template_that_its_checkpoint_gets(name: str) -> None:
    tokenizer = tokenizer_of(name)
    chat = ChatFormat(tokenizer, name)
    messages = [{"role": "system", "content": "Find the way."}, {"role": "user", "content": TURNS[0]}]
    ids = chat.opening(messages)
    assert ids == ids_of(tokenizer, messages), "the first prompt is the one that the model's own template writes"
    thinks = not tokenizer.decode(ids).rstrip().endswith("</think>")
    for number, turn in enumerate(TURNS[1:]):
        answer = f"{THOUGHT if thinks else ''}north {number}"
        sampled = answer.removeprefix("<think>\n") if chat.opens_thought else answer
        before, ids = ids, [*ids, *encoded(tokenizer, sampled), chat.end_ids[0]]
        ids += chat.reply(turn, ended=True)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        assert ids == ids_of(tokenizer, messages, chat.written)
        assert ids[: len(before)] == before
    assert ids_of(tokenizer, messages) != ids or not thinks, "the model's own template drops thoughts"


def test_a_template_that_is_nearly_one_of_a_family_is_what_a_checkpoint_gets() -> None:
    """TRL knows a family by its whole text: what else was changed in another one, nobody knows."""
    chat = ChatFormat(tokenizer_with(template_of("qwen3") + "\n"), "m")
    assert chat.rewrites and chat.written == template_of("qwen3") + "\n"


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """The miniature `tiny` with the template of Qwen3 and its control tokens."""
    source, target = resolve_model("tiny").path, tmp_path / "qwen"
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<|im_start|>", "<|im_end|>"], special_tokens=True)
    tokenizer.chat_template = template_of("qwen3")
    model = AutoModelForCausalLM.from_pretrained(source)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    return target


@pytest.fixture
def made(qwen: Path) -> Experiment:
    """conf/tiny.yaml with that actor, and one game to evaluate."""
    settings = {
        "method.roles.actor.model": str(qwen),
        "method.recipe.warm_start": None,
        "method.families.0.evaluation_seeds.count": 1,
        "runtime.min_free_gigabytes": 0,
    }
    return load_experiment(ROOT / "conf/tiny.yaml", settings)


def test_a_run_records_which_template_wrote_its_prompts(made: Experiment, tmp_path: Path) -> None:
    run = RunDirectory.create_or_open(made, tmp_path / "run")
    recipe, services = recipe_of(run.method), EngineServices(run)
    try:
        with Lease.acquire(run.path, seconds=600) as lease:
            attempt = Attempt(token=lease.token, chat_templates=services.chat_templates, ways=services.ways)
            for number, stage in ((0, "initialize"), (0, "evaluate"), (1, "plan")):
                services.begin(number, stage, None)
                execute_stage(run, recipe, number, stage, attempt=attempt, services=services)
        assert run.manifest(0, "evaluate").provenance["chat_templates"] == {
            "actor": f"{OWN}; earlier turns stay as they were sampled, thoughts too (a checkpoint gets {TRAINING})"
        }
        assert run.manifest(0, "evaluate").provenance["ways"] == {"actor": {"sampling": "packed"}}
        for number, stage in ((0, "initialize"), (1, "plan")):
            noted = run.manifest(number, stage).provenance.keys()
            assert not noted & {"chat_templates", "ways"}, "it sampled nothing"
    finally:
        services.close()


@pytest.mark.slow
def test_doctor_says_so(made: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "crl.preflight.probe.Comparison.checks", lambda self, **more: []
    )  # seconds, and tested elsewhere
    found = {finding.name: finding.result for finding in experiment_findings(made, 1)}
    assert found["template, actor"].startswith(f"{OWN}; earlier turns stay as they were sampled, thoughts too")
    assert "history: strip_thoughts trains that" in found["template, actor"]
    assert found["template, extractor"] == f"{OWN}; for one turn"
    assert "history, actor" not in found
    strips = made.model_copy(
        update={
            "method": made.method.model_copy(
                update={
                    "roles": {
                        **made.method.roles,
                        "actor": made.method.roles["actor"].model_copy(update={"history": "strip_thoughts"}),
                    }
                }
            )
        }
    )
    found = {finding.name: finding.result for finding in experiment_findings(strips, 1)}
    assert found["template, actor"] == f"{OWN}; earlier turns stay without their thoughts (but between tool calls)"


@pytest.mark.parametrize(
    ("history", "update", "words"),
    [
        ("strip_thoughts", "in packed passes", "each turn that follows a thought begins a sequence; an update computes "
         "them in one tree, so what they share is computed once"),
        ("strip_thoughts", "row by row", "alone, up to 3.5 times the tokens"),
        ({"window": 3}, "in padded batches", "each window begins a sequence; an update computes them alone, with what"),
        ({"summarize": {"at": 200}}, "in packed passes", "each summary begins a sequence"),
    ],
)  # fmt: skip
def test_doctor_says_what_the_sequences_cost(history: object, update: str, words: str) -> None:
    settings = {
        "method.roles.actor.history": history, "method.roles.actor.context": 400,
        "method.prompts.actor.summarize": "Sum up.",
    }  # fmt: skip
    method = load_experiment(ROOT / "conf/tiny.yaml", settings).method
    [finding] = _history(method, "actor", update)
    assert finding.name == "history, actor" and words in finding.result
