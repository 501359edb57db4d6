"""A thinking extractor: its template drops thoughts from history and begins one in every prompt (as Qwen3-Thinking).

It writes one turn, so a template that rewrites history is no obstacle; a policy of several turns is refused it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config import RoleConfig
from crl.config.load import load_experiment
from crl.extractor.distill import DistillItem, distill_wave
from crl.policies import load_chat, resolve_model
from crl.policies.language_model import load_policy
from crl.preflight import check_ready
from crl.protocols import Sampled, StopReason, WholeTurns
from crl.rollout.actions import parse_action

ROOT = Path(__file__).parents[3]
TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}"
)


def write_thinking(directory: Path) -> Path:
    """The miniature `tiny` with tokens for the tags of thoughts, which are no special tokens, and that template."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from crl.policies.tiny import write_tiny

    directory.mkdir(parents=True)
    write_tiny(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = TEMPLATE
    model = AutoModelForCausalLM.from_pretrained(directory)
    model.resize_token_embeddings(len(tokenizer))
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def thinking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_thinking(tmp_path_factory.mktemp("models") / "thinking")


@pytest.fixture(scope="module")
def policy(thinking: Path) -> Any:
    return load_policy(RoleConfig(model=str(thinking), context=2048), thinking, None, threads=1)


class Writes(WholeTurns):
    """The real chat format and a script of answers, in the ids of the model's own tokenizer."""

    def __init__(self, policy: Any, *answers: tuple[str, StopReason]) -> None:
        self.chat, self.context, self._tokenizer, self._left = policy.chat, policy.context, policy.tokenizer, [*answers]

    def open(self, prompts: Any, seeds: Any, limit: Any = None) -> Any:
        return self

    def sample(self, rows: Any, sampling: Any, answers: Any = None) -> dict[int, Sampled]:
        found = {}
        for row in rows:
            text, reason = self._left.pop(0)
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
            ids += [self.chat.end_ids[0]] if reason is StopReason.end_of_turn else []
            found[row] = Sampled(ids, [-0.5] * len(ids), reason)
        return found

    def drop(self, rows: Any) -> None:
        pass


def test_its_template_begins_a_thought(thinking: Path, policy: Any) -> None:
    chat = load_chat(resolve_model(str(thinking)))
    assert chat.opens_thought and policy.chat.opens_thought
    begin, end = (policy.tokenizer.convert_tokens_to_ids(tag) for tag in ("<think>", "</think>"))
    prompt = chat.opening([{"role": "user", "content": "x <think> y"}])
    assert prompt.count(begin) == 1 and prompt[-2] == begin, "a tag in a text is text"
    assert not load_chat(resolve_model("tiny")).opens_thought
    # What was sampled is read with its tags; a demonstration ends the thought before it speaks.
    assert chat.decode([*policy.tokenizer("a</think>b", add_special_tokens=False)["input_ids"]]) == "a</think>b"
    said = chat.answer("ADD: b")
    assert end in said and chat.decode(said) == "\n</think>\n\nADD: b"


def test_thoughts_are_recorded_and_trained_and_what_follows_them_is_read(kit: Any, policy: Any) -> None:
    ended, length = StopReason.end_of_turn, StopReason.length
    said = [
        ("ADD: no, wait</think>\n\nADD: go north", ended),
        ("ADD: go north", ended),
        ("ADD: go north", length),
        ("a</think>ADD: go no", length),
        ("a</think>", ended),
    ]
    items = [DistillItem(kit.episode(number), ()) for number in range(len(said))]
    results = distill_wave(
        Writes(policy, *said), items, **kit.distilling(kit.method(context=2048)), seed_of=kit.seed_of,
        weights_digest="w", round=1,
    )  # fmt: skip
    rows = [result.distillation for result in results]
    assert [row.reason_code for row in rows] == [
        "ok", "unfinished_thought", "unfinished_thought", "truncated", "empty",
    ]  # fmt: skip
    assert [operation.text for result in results for operation in result.operations] == ["go north"]
    record = results[0].generation
    written = policy.tokenizer(said[0][0], add_special_tokens=False)["input_ids"]
    assert record.token_ids[-len(written) - 1 :] == [*written, policy.chat.end_ids[0]]
    assert sum(record.loss_mask) == len(written) + 1, "the thought is trained like all that was sampled"
    assert record.output == said[0][0]


def test_an_actors_action_is_behind_the_thought_that_its_prompt_began() -> None:
    moves = ["north", "east"]
    assert parse_action("north?</think> east", moves, "word", thinking=True) == "east"
    assert parse_action("north", moves, "word", thinking=True) is None
    assert parse_action("north", moves, "word") == "north"


def test_it_samples_and_stays_inside_its_thought_until_it_ends_it(policy: Any, kit: Any) -> None:
    """The real session, of a model that knows nothing: whatever it writes is recorded and judged."""
    items = [DistillItem(kit.episode(number), ()) for number in range(3)]
    method = kit.method(context=512)
    results = distill_wave(policy, items, **kit.distilling(method), seed_of=kit.seed_of, weights_digest="w", round=1)
    for result in results:
        assert 0 < sum(result.generation.loss_mask) <= method.role("extractor").sampling.max_new_tokens
        if "</think>" not in result.generation.output:
            assert result.distillation.reason_code == "unfinished_thought"
    assert np.isfinite([value for result in results for value in result.generation.logprobs]).all()


@pytest.mark.slow
@pytest.mark.parametrize("role", ["extractor", "actor"])
def test_preflight_takes_it_as_either_role(thinking: Path, tmp_path: Path, role: str) -> None:
    settings = {"runtime.min_free_gigabytes": 0, f"method.roles.{role}.model": str(thinking)}
    check_ready(load_experiment(ROOT / "conf/tiny.yaml", settings), tmp_path / "run", 1)
