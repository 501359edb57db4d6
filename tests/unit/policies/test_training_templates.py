"""Actors of several turns whose own chat template rewrites what came before: TRL's training template of their family
takes its place where it does not. Held against plain transformers, with the template texts that TRL carries."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast
from trl.chat_template_utils import get_training_chat_template

from crl.cli.doctor import experiment_findings
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.errors import BadInput
from crl.policies.chat import OWN, TRAINING, ChatFormat
from crl.policies.sources import resolve_model
from crl.protocols import Tool
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease

ROOT = Path(__file__).parents[3]
REPLACED = ("qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6", "deepseek_r1_distill")
"""Families whose own template rewrites history, and whose training template does not."""
REFUSED = {
    "deepseekv3": "so does TRL's", "glm4moe": "so does TRL's", "gptoss": "so does TRL's",
    "nemotron_3_nano": "so does TRL's", "nemotron_3_super": "so does TRL's", "nemotron_3_ultra": "so does TRL's",
    "nemotron_3_5_lightning": "so does TRL's", "lfm2_2_5": "TRL has no other", "lfm2_2_5_v2": "TRL has no other",
    "lfm2_2_5_vl": "TRL has no other",
}  # fmt: skip
VISION = {"idefics3", "llava_next", "smolvlm"}
"""They take parts of pictures and texts, no texts."""
CONTROL = re.compile(r"<[|｜][^<>|｜\s]+[|｜]?>|<[^<>|｜\s]+[|｜]>|</?[a-z]+_of_[a-z]+>|\[/?[A-Z_]{3,}\]")
ENDS = ("<|im_end|>", "<｜end▁of▁sentence｜>", "<|end|>", "<|eot_id|>", "<end_of_turn>", "<turn|>")
THOUGHT = "<think>\nIs it north?\n</think>\n\n"
TURNS = ("You see: #.@", "You see:\n\n..@", "You see: @")


def template_of(name: str) -> str:
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    """Bytes, and every control token that the template writes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    control = sorted(set(CONTROL.findall(template)))
    end = next((each for each in ENDS if each in control), "</s>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token=end)
    tokenizer.add_tokens(control, special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>"])  # as Qwen's: no special tokens
    tokenizer.chat_template = template
    return tokenizer


def ids_of(tokenizer: Any, messages: Any, template: str | None = None, **more: Any) -> list[int]:
    text = tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True, chat_template=template, **more
    )
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def test_each_template_that_trl_has_is_used_replaced_or_refused_with_the_reason() -> None:
    """The model's own where it only appends, else TRL's training template where that does, else neither."""
    folder = Path(str(files("trl") / "chat_templates"))
    names = {path.stem for path in folder.glob("*.jinja") if not path.stem.endswith("_training")} - VISION
    found = {}
    for name in sorted(names):
        try:
            found[name] = ChatFormat(tokenizer_with(template_of(name)), name).template
        except BadInput as error:
            assert "rewrites history" in error.found
            assert error.next_step
            found[name] = error.found.split(", and ")[-1]
    expected = {**dict.fromkeys(names, OWN), **dict.fromkeys(REPLACED, TRAINING)}
    for name, template in expected.items():
        assert found[name].startswith(REFUSED.get(name, template)), (name, found[name])


@pytest.mark.parametrize("name", REPLACED)
def test_a_chat_is_the_rendering_of_the_training_template_and_only_grows(name: str) -> None:
    tokenizer = tokenizer_with(template_of(name))
    training = get_training_chat_template(tokenizer)
    chat = ChatFormat(tokenizer, name)
    messages = [{"role": "system", "content": "Find the way."}, {"role": "user", "content": TURNS[0]}]
    ids = chat.opening(messages)
    assert ids == ids_of(tokenizer, messages), "the first prompt is the one that the model's own template writes"
    thinks = not tokenizer.decode(ids).rstrip().endswith("</think>")
    for number, turn in enumerate(TURNS[1:]):
        answer = f"{THOUGHT if thinks else ''}north {number}"
        sampled = answer.removeprefix("<think>\n") if chat.opens_thought else answer
        before, ids = ids, [*ids, *tokenizer(sampled, add_special_tokens=False)["input_ids"], chat.end_ids[0]]
        ids += chat.reply(turn, ended=True)
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": turn}]
        assert ids == ids_of(tokenizer, messages, training)
        assert ids[: len(before)] == before
    assert ids_of(tokenizer, messages) != ids or not thinks, "the model's own template drops thoughts"


@pytest.mark.parametrize("name", REPLACED[:4])
def test_tools_are_shown_as_by_the_models_own_template(name: str) -> None:
    tokenizer = tokenizer_with(template_of(name))
    tool = Tool("search", "Find things.", {"type": "object", "properties": {"words": {"type": "string"}}})
    written = [{"type": "function", "function": {"name": tool.name, "description": tool.description,
                "parameters": dict(tool.parameters)}}]  # fmt: skip
    messages = [{"role": "system", "content": "Find the way."}, {"role": "user", "content": TURNS[0]}]
    assert ChatFormat(tokenizer, name).opening(messages, [tool]) == ids_of(tokenizer, messages, tools=written)


def test_one_turn_roles_keep_the_models_own_template() -> None:
    assert ChatFormat(tokenizer_with(template_of("qwen3")), "m", multi_turn=False).template == OWN


def test_a_template_that_is_nearly_one_of_a_family_is_refused_with_the_reason() -> None:
    """TRL knows a family by its whole text: what else was changed in another one, nobody knows."""
    with pytest.raises(BadInput, match=r"rewrites history.*TRL has no other template for exactly this text"):
        ChatFormat(tokenizer_with(template_of("qwen3") + "\n"), "m")


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
        assert run.manifest(0, "evaluate").provenance["chat_templates"] == {"actor": TRAINING}
        assert run.manifest(0, "evaluate").provenance["ways"] == {"actor": {"sampling": "packed"}}
        for number, stage in ((0, "initialize"), (1, "plan")):
            noted = run.manifest(number, stage).provenance.keys()
            assert not noted & {"chat_templates", "ways"}, "it sampled nothing"
    finally:
        services.close()


def test_doctor_says_so(made: Experiment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "crl.preflight.probe.Comparison.checks", lambda self, **more: []
    )  # seconds, and tested elsewhere
    found = {finding.name: finding.result for finding in experiment_findings(made, 1)}
    assert found["template, actor"] == f"{TRAINING}; thoughts stay in the history"
    assert found["template, extractor"] == f"{OWN}; for one turn"
