"""Stripped contexts: token for token and mask for mask what a free episode that acts the same has as its record."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from crl.config import SamplingConfig, SearchAndAskConfig, SelfDistillationConfig
from crl.protocols import Advice, Inquiry
from crl.recipes.complementary.mechanisms.self_distillation import nll_samples
from crl.records import QUESTION
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave, stripped_contexts
from tests.unit.rollout.fakes import Corridor, ScriptedPolicy, method, task

SAMPLING = SamplingConfig(max_new_tokens=40)
NOTE = "use {observation} & go right"
Script = list[tuple[str, bool]]
"""What is said, turn by turn, and whether its end was sampled."""


class Echo:
    """Answers every question with itself."""

    def advise(self, inquiries: Sequence[Inquiry]) -> list[Advice]:
        return [Advice("ok", each.question, "e2", "d2", 0.5) for each in inquiries]


def play(script: Script, *, guided: bool, seed: int = 3, **rollout: object) -> PlayedEpisode:
    policy = ScriptedPolicy(lambda row, turn: script[turn])
    slot = EpisodeSlot(task(0, seed), (Guide("e1", "d1", NOTE),)) if guided else EpisodeSlot(task(1, seed))
    return play_wave(
        policy, Corridor(), [slot], method=method(**rollout), seed_of=lambda name: np.random.SeedSequence(1),
        sampling=SAMPLING, weights_digest="w", stage="collect",
        advisor=Echo() if rollout.get("search_and_ask") else None,
    )[0]  # fmt: skip


def assert_as_free(guided: PlayedEpisode, free: PlayedEpisode) -> None:
    [row] = stripped_contexts(guided)
    assert (row.episode_id, row.generation_id) == (guided.episode.episode_id, guided.generations[0].generation_id)
    assert row.token_ids == free.generations[0].token_ids
    assert row.loss_mask == free.generations[0].loss_mask
    assert row.removed_tokens == len(guided.generations[0].token_ids) - len(free.generations[0].token_ids) > 0


@pytest.mark.parametrize("placement", ["user", "system"])
@pytest.mark.parametrize(
    "script",
    [
        [("right", True)] * 3,
        [("right", False), ("hm", True), ("Right!", False), ("go right", True)],
        [("", False), ("left", True)],
        [("hm", True)] * 6,
    ],
    ids=["won", "ends not sampled", "lost", "turn limit"],
)
def test_without_questions(script: Script, placement: str) -> None:
    played = [play(script, guided=guided, placement=placement) for guided in (True, False)]
    assert played[0].episode.guided and NOTE not in played[1].generations[0].prompt
    assert_as_free(*played)


ASK = ("ASK: where is {it}?", True)
CUT = ("ASK: where", False)
EMPTY = ("ASK:", True)


@pytest.mark.parametrize("placement", ["user", "system"])
@pytest.mark.parametrize(
    "script",
    [
        [ASK, ("right", True), ("right", True), ("right", True)],
        [("right", False), CUT, ASK, ("right", True), ("right", False)],
        [("hm", True), ASK, ("hm", False), EMPTY, ("left", True)],
        [ASK, CUT, EMPTY, ("right", True), ("right", True), ("right", True)],
    ],
    ids=["first", "in a row, the end not sampled", "between invalid actions", "beyond the uses"],
)
def test_turns_that_ask_are_left_out_with_what_was_replied(script: Script, placement: str) -> None:
    asking = {"placement": placement, "search_and_ask": SearchAndAskConfig()}
    guided = play(script, guided=True, **asking)
    assert "ASK: something" in guided.generations[0].prompt and len(guided.questions) > 0
    free = play([said for said in script if said not in (ASK, CUT, EMPTY)], guided=False, **asking)
    assert_as_free(guided, free)


def test_a_context_ends_with_what_the_actor_wrote_itself() -> None:
    """Out of turns while asking: the reply to the last own turn was answered by questions only."""
    guided = play([("right", True)] + [EMPTY] * 5, guided=True, search_and_ask=SearchAndAskConfig())
    [row] = stripped_contexts(guided)
    assert guided.episode.stop_reason == "turn_limit"
    whole = play([("right", True)] * 3, guided=False).generations[0]
    assert row.token_ids == whole.token_ids[: len(row.token_ids)]
    assert row.loss_mask == whole.loss_mask[: len(row.loss_mask)] and row.loss_mask[-1] == 1
    assert sum(row.loss_mask) == len("right") + 1


def test_an_episode_of_questions_only_keeps_its_first_prompt() -> None:
    guided = play([EMPTY] * 6, guided=True, search_and_ask=SearchAndAskConfig())
    [row] = stripped_contexts(guided)
    assert sum(row.loss_mask) == 0 and len(row.token_ids) == len(row.loss_mask) > 0


@pytest.mark.parametrize("guided", [True, False])
def test_what_was_no_action_is_read_and_not_learned(guided: bool) -> None:
    """A win shows of it only that it did no harm."""
    script = [("hm", True), *([ASK] if guided else []), ("right", False), ("go right", True), ("right", True), CUT]
    played = play(script, guided=guided, **{"search_and_ask": SearchAndAskConfig()} if guided else {})
    assert played.episode.success and not all(turn.valid for turn in played.turns)
    contexts = {row.generation_id: row for row in stripped_contexts(played)} if guided else {}
    records = {row.generation_id: row for row in played.generations}
    config = SelfDistillationConfig(episodes="all_wins")
    whole, learned = (
        nll_samples([played.episode], contexts, records, config, round=1, turns=turns) for turns in ([], played.turns)
    )
    for before, sample in zip(whole, learned, strict=True):
        assert sample.token_ids == before.token_ids
        said = [token for token, mask in zip(sample.token_ids, sample.loss_mask, strict=True) if mask]
        valid = [turn for turn in played.turns if turn.valid and turn.action != QUESTION]
        assert said == [
            token
            for turn in valid
            for token in records[turn.generation_id].token_ids[turn.first_token : turn.last_token]
        ]
        assert sum(before.loss_mask) > len(said) > 0
