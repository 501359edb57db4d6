"""Answers to questions: one sample each from its own stream, exact token records, and reasons where there is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from crl.config import PromptConfig, RoleConfig, SamplingConfig
from crl.errors import BadInput
from crl.extractor.answer import answer_all
from crl.extractor.outputs import generation_id_of
from crl.extractor.prompts import check_prompts
from crl.protocols import Inquiry, Policy
from crl.rollout.prompts import check_prompts as check_actor_prompts
from crl.rounds.demonstrations import ScriptedPolicy
from tests.unit.rollout.fakes import CharacterChat

ROOT = Path(__file__).parents[3]
ASK = PromptConfig(system="Answer.", first="{goal}|{observation}|{question}|{experience}")


class Chat(CharacterChat):
    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), 2]


def inquiry(index: int, question: str = "where?") -> Inquiry:
    return Inquiry(f"q-e-{index}", "e", "walk", "Go {goal}.", "seen {x}", question)


def ask(said: list[str], inquiries: list[Inquiry], context: int = 500) -> list:
    policy: Policy = ScriptedPolicy(Chat(), context, lambda row: said[row])  # type: ignore[assignment]
    role = RoleConfig(sampling=SamplingConfig(max_new_tokens=20))
    return answer_all(
        policy, inquiries, ["note {it}"] * len(inquiries), prompt=ASK, role=role, batch=16,
        seed_of=lambda name: np.random.SeedSequence(len(name)), weights_digest="w", round=3, stage="collect",
    )  # fmt: skip


def test_the_prompt_shows_goal_observation_question_and_entry_and_the_ids_are_those_sampled() -> None:
    first, second = ask(["up", " go down\n"], [inquiry(0), inquiry(1, "and {now}?")])
    assert (first.reason_code, first.text, second.text) == ("ok", "up", "go down")
    record = second.generation
    prompt = Chat().opening(
        [
            {"role": "system", "content": "Answer."},
            {"role": "user", "content": "Go {goal}.|seen {x}|and {now}?|note {it}"},
        ]
    )
    assert record.token_ids == [*prompt, *map(ord, " go down\n"), 2]
    assert record.loss_mask == [0] * len(prompt) + [1] * 10
    assert (record.role, record.kind, record.stage, record.round) == ("extractor", "ask", "collect", 3)
    assert record.generation_id == generation_id_of("q-e-1")


def test_an_empty_answer_is_none_and_keeps_its_record() -> None:
    (found,) = ask([" \n"], [inquiry(0)])
    assert (found.reason_code, found.text) == ("no_answer", None)
    assert sum(found.generation.loss_mask) == 3


def test_the_actor_reads_what_follows_the_thoughts_and_all_of_it_is_recorded() -> None:
    thought, unfinished = ask(["<think>a</think> b", "<think>up"], [inquiry(0), inquiry(1)])
    assert (thought.reason_code, thought.text) == ("ok", "b")
    assert thought.generation.output == "<think>a</think> b" and sum(thought.generation.loss_mask) == 19
    assert (unfinished.reason_code, unfinished.text) == ("no_answer", None)


def test_a_prompt_that_does_not_fit_is_not_sampled_and_holds_up_no_other() -> None:
    long, short = ask(["up"], [inquiry(0, "x" * 100), inquiry(1)], context=120)
    assert (long.reason_code, long.text, long.generation) == ("prompt_too_long", None, None)
    assert (short.reason_code, short.text) == ("ok", "up")


@pytest.mark.parametrize("first", ["{question}", "{experience}", "{question} {experience} {trajectory}"])
def test_a_prompt_that_cannot_be_answered_from_is_refused(first: str) -> None:
    plain = PromptConfig(system="s", first="x")
    with pytest.raises(BadInput):
        check_prompts({"distill": plain, "merge": plain, "ask": PromptConfig(system="s", first=first)})


def test_the_prompts_that_ship_with_an_offer_are_sound() -> None:
    sets = {path.stem: yaml.safe_load(path.read_text()) for path in sorted((ROOT / "conf/prompts").glob("*.yaml"))}
    asking = {
        name: {key: PromptConfig.model_validate(each) for key, each in content.items()}
        for name, content in sets.items()
        if "ask" in content
    }
    assert {"paper_ask", "realms"} <= set(asking)
    for prompts in asking.values():
        check_prompts(prompts)
        check_actor_prompts(prompts)
    own = dict(sets["paper_ask"])
    own.pop("ask")
    assert own == sets["paper"], "they differ by search-and-ask alone"
