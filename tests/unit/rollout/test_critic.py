"""The actor's verdicts: what is read from a text, what is shown and recorded, and what becomes of an experience."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import ActorCriticConfig, DistillConfig, PromptConfig, RoleConfig
from crl.errors import BadInput, PromptTooLong
from crl.protocols import StopReason
from crl.records import Retrieval
from crl.rollout.critic import (
    SCORES,
    Proposed,
    VerdictReason,
    check_critic_prompt,
    check_critic_room,
    critique,
    parse_verdict,
)
from tests.unit.rollout import fakes


@pytest.mark.parametrize(
    ("text", "kind", "experience"),
    [
        ("ACCEPT", "accept", "as it is"),
        ("\n  accept \n\n", "accept", "as it is"),
        ("REJECT", "reject", None),
        ("REFINE: go left", "refine", "go left"),
        ("refine :  go: left ", "refine", "go: left"),
    ],
)
def test_a_verdict_in_a_line(text: str, kind: str, experience: str | None) -> None:
    verdict = parse_verdict(text, "lines", max_characters=20)
    assert (verdict.kind, verdict.reason, verdict.score) == (kind, VerdictReason.ok, SCORES[kind])
    assert verdict.experience("as it is") == experience


@pytest.mark.parametrize(
    ("value", "kind", "experience"),
    [
        ({"verdict": "accept"}, "accept", "as it is"),
        ({"verdict": " Reject ", "experience": "x"}, "reject", None),
        ({"verdict": "refine", "experience": " go\nleft "}, "refine", "go\nleft"),
    ],
)
@pytest.mark.parametrize("around", ["{}", "<think>{{</think> {}", "Well.\n```json\n{}\n```\nDone."])
def test_a_verdict_in_json(value: dict[str, str], kind: str, experience: str | None, around: str) -> None:
    verdict = parse_verdict(around.format(json.dumps(value)), "json", max_characters=20)
    assert (verdict.kind, verdict.experience("as it is")) == (kind, experience)


@pytest.mark.parametrize(
    ("text", "form", "reason"),
    [
        ("", "lines", "no_verdict"),
        ("I ACCEPT", "lines", "no_verdict"),
        ("ACCEPT\nREJECT", "lines", "no_verdict"),
        ("ACCEPT: it", "lines", "no_verdict"),
        ("REFINE go left", "lines", "no_verdict"),
        ("REFINE:", "lines", "empty_text"),
        ("REFINE: " + "x" * 21, "lines", "text_too_long"),
        ("REFINE: a\x07b", "lines", "bad_text"),
        ("ACCEPT", "json", "bad_json"),
        ("[1]", "json", "no_verdict"),
        ('{"verdict": "keep"}', "json", "no_verdict"),
        ('{"verdict": "refine"}', "json", "empty_text"),
        ('{"verdict": "refine", "experience": 3}', "json", "bad_text"),
        ('{"verdict": "refine", "experience": "\\ud800"}', "json", "bad_text"),
    ],
)
def test_what_is_no_verdict_has_a_reason_and_leaves_the_experience_alone(text: str, form: Any, reason: str) -> None:
    verdict = parse_verdict(text, form, max_characters=20)
    assert (verdict.kind, verdict.reason.value, verdict.score) == ("malformed", reason, None)
    assert verdict.experience("as it is") == "as it is"


def test_a_verdict_that_was_cut_off_is_none() -> None:
    verdict = parse_verdict("REFINE: go le", "lines", max_characters=20, truncated=True)
    assert (verdict.kind, verdict.reason) == ("malformed", VerdictReason.truncated)


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ("<think>REJECT?</think>\nACCEPT", "accept", "ok"),
        ("<THINK>ACCEPT?</Think>REJECT", "reject", "ok"),
        ("<think>REJECT", "malformed", "unfinished_thought"),
        ("ACCEPT\n<think>or REJECT", "malformed", "unfinished_thought"),
        ("<think>REJECT</think>", "malformed", "no_verdict"),
    ],
)
def test_a_verdict_that_is_only_thought_of_is_none(text: str, kind: str, reason: str) -> None:
    verdict = parse_verdict(text, "lines", max_characters=20)
    assert (verdict.kind, verdict.reason.value) == (kind, reason)
    assert parse_verdict("<think>ACC", "lines", max_characters=20, truncated=True).reason.value == "unfinished_thought"
    thought = parse_verdict('<think>{"verdict": "reject"}', "json", max_characters=20)
    assert thought.reason is VerdictReason.unfinished_thought


@settings(deadline=None, max_examples=300)
@given(
    st.text(max_size=60) | st.text(alphabet='ACEPTREFINJ:{}"\n\\u ', max_size=60), st.sampled_from(["lines", "json"])
)
def test_no_text_is_an_error(text: str, form: Any) -> None:
    verdict = parse_verdict(text, form, max_characters=20)
    assert (verdict.kind == "malformed") == (verdict.reason is not VerdictReason.ok) == (verdict.score is None)
    left = verdict.experience("as it is")
    assert (left is None) == (verdict.kind == "reject") and (left is None or left.strip())


CRITIC = ActorCriticConfig(max_new_tokens=12)
PROMPT = PromptConfig(system="Judge.", first="{goal}|{observation}|{experience}|{success_rate}")


def proposed(member: int, experience: str, rate: float | None = None) -> Proposed:
    task = fakes.task(member, seed=3)
    retrieval = Retrieval(
        episode_id=task.episode_id, round=1, bank_round=0, family=task.family, entry_id=f"e{member}",
        content_digest=f"d{member}", generation_id="x", rank=0, similarity=1.0, rank_score=0.0, count=0, recent=False,
        score=0.0, chosen=True,
    )  # fmt: skip
    return Proposed(task, retrieval, experience, rate)


def critiqued(policy: Any, listed: list[Proposed]) -> Any:
    return critique(
        policy, listed, role=RoleConfig(), critic=CRITIC, prompt=PROMPT,
        output_format=DistillConfig(format="lines", max_characters=20),
        seed_of=lambda name: np.random.SeedSequence(list(name.encode())), temperature=0.7, weights_digest="w",
        stage="critique",
    )  # fmt: skip


def test_what_is_shown_what_is_recorded_and_what_becomes_of_the_experience() -> None:
    answers = [("ACCEPT", True), ("REFINE: go right", True), ("REJECT", True), ("hm", True), ("REFINE: go", False)]
    policy = fakes.ScriptedPolicy(lambda row, turn: answers[row])
    listed = [proposed(member, f"advice {member}", None if member == 0 else 0.25) for member in range(5)]
    rows = critiqued(policy, listed)
    found = [(row.critique.verdict, row.critique.score, row.critique.text) for row in rows]
    assert found == [
        ("accept", 1.0, "advice 0"), ("refine", 0.5, "go right"), ("reject", 0.0, None),
        ("malformed", None, "advice 3"), ("malformed", None, "advice 4"),
    ]  # fmt: skip
    assert [row.critique.reason_code for row in rows[3:]] == ["no_verdict", "truncated"]
    task = listed[1].task
    assert rows[1].generation.prompt.endswith(f"{task.goal}|{task.first_observation}|advice 1|0.2")
    assert rows[0].generation.prompt.endswith("|advice 0|unknown")
    for index, row in enumerate(rows):
        generation, critique = row.generation, row.critique
        assert (critique.entry_id, critique.content_digest) == (f"e{index}", f"d{index}")
        assert critique.generation_id == generation.generation_id == f"{listed[index].task.episode_id}-critique"
        assert (generation.role, generation.kind, generation.temperature) == ("actor", "critic", 0.7)
        # The ids sampled are the ids recorded, and nothing else is marked as sampled.
        assert generation.token_ids == policy.session.ids[index]  # type: ignore[union-attr]
        first, last = policy.session.sampled_at[index][0]  # type: ignore[union-attr]
        assert [place for place, mask in enumerate(generation.loss_mask) if mask] == list(range(first, last))
        assert all(generation.logprobs[place] < 0 for place in range(first, last))
    assert policy.session.dropped == set(range(5))  # type: ignore[union-attr]


def test_a_verdict_does_not_depend_on_the_others() -> None:
    def noisy(row: int, turn: int) -> tuple[str, bool]:
        return ("ACCEPT", True)

    listed = [proposed(member, "advice") for member in range(20)]
    together = critiqued(fakes.ScriptedPolicy(noisy), listed)
    alone = critiqued(fakes.ScriptedPolicy(noisy), [listed[18]])
    assert together[18] == alone[0], "each has its own random stream, and batches are cut at 16"


def test_a_prompt_that_does_not_fit_is_not_sampled_and_changes_nothing() -> None:
    policy = fakes.ScriptedPolicy(lambda row, turn: ("REJECT", True), context=80)
    rows = critiqued(policy, [proposed(0, "short"), proposed(1, "long " * 40)])
    assert [(row.critique.verdict, row.critique.reason_code) for row in rows] == [
        ("reject", "ok"), ("malformed", "prompt_too_long"),
    ]  # fmt: skip
    assert rows[1].critique.text == "long " * 40
    assert (rows[1].generation.token_ids, rows[1].generation.stop_reason) == ([], StopReason.context_limit.value)


def test_a_prompt_that_cannot_work_is_refused_before_work_starts() -> None:
    def shows(first: str) -> PromptConfig:
        return PromptConfig(system="s", first=first)

    check_critic_prompt(shows("{experience} {success_rate} {goal} {observation}"))
    with pytest.raises(BadInput, match="trajectory"):
        check_critic_prompt(shows("{experience} {trajectory}"))
    with pytest.raises(BadInput, match="does not show the experience"):
        check_critic_prompt(shows("{goal}"))
    chat: Any = fakes.CharacterChat()
    check_critic_room(chat, 100, PROMPT, CRITIC)
    with pytest.raises(PromptTooLong, match="critic"):
        check_critic_room(chat, 20, PROMPT, CRITIC)
