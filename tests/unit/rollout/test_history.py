"""Histories that are cut: what each turn read, put together here from texts; what is trained; what the rows say."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from crl.checks import check_tables
from crl.config import Method, RoleConfig, SamplingConfig, SearchAndAskConfig
from crl.config.roles import SummaryAt, SummaryHistory, WindowHistory
from crl.extractor.trajectory import render_trajectory
from crl.protocols import Step, Tool
from crl.records import QUESTION, SUMMARY, Episode, Generation, Turn, table_of
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave, stripped_contexts
from crl.rollout.prompts import actor_messages, following_text
from crl.rounds.demonstrations import ScriptedRole, play_script
from tests.unit.rollout import fakes
from tests.unit.rollout.fakes import CharacterChat, Corridor, ScriptedPolicy, ScriptedSession
from tests.unit.rollout.test_free_text import TOOLS, Shop, last, seen
from tests.unit.rollout.test_stripped import Echo

NEW, REQUEST = 24, "Sum up {goal}"
SAMPLING = SamplingConfig(max_new_tokens=NEW)
NOTE = "go right, always"
Script = Callable[[int], tuple[str, bool]]
"""From a turn, summaries among them, to what is said and whether its end was sampled."""


def method(history: Any, *, request: str | None = REQUEST, context: int = 100_000, **rollout: object) -> Method:
    base = fakes.method(**rollout)
    actor = base.prompts["actor"].model_copy(update={"summarize": request})
    sampling = SamplingConfig(max_new_tokens=NEW)
    roles = {**base.roles, "actor": RoleConfig(history=history, context=context, sampling=sampling)}
    return Method(families=base.families, rollout=base.rollout, roles=roles, prompts={**base.prompts, "actor": actor})


def play(
    script: Script, history: Any, *, context: int, turns: int = 12, guided: bool = False, **rollout: object
) -> tuple[PlayedEpisode, ScriptedSession]:
    policy = ScriptedPolicy(lambda row, turn: script(turn), context)
    slot = EpisodeSlot(fakes.task(0, 50), (Guide("e1", "0" * 64, NOTE),) if guided else ())
    asking = rollout.get("search_and_ask") is not None
    [played] = play_wave(
        policy, Corridor(turns), [slot], method=method(history, **rollout), sampling=SAMPLING, weights_digest="0" * 64,
        seed_of=lambda name: np.random.SeedSequence(1), stage="collect", advisor=Echo() if asking else None,
    )  # fmt: skip
    assert policy.session is not None
    return played, policy.session


def opening(guided: bool = False) -> list[int]:
    return CharacterChat().opening(
        actor_messages(
            fakes.actor_prompt(), goal="Go {right}.", observation="50 to go {x}", actions=Corridor.actions,
            experience=NOTE if guided else None, placement="user",
        )
    )  # fmt: skip


def written(turn: Turn) -> list[int]:
    return [*map(ord, turn.output), *([fakes.END] if turn.stop_reason == "end_of_turn" else [])]


def replied(played: PlayedEpisode, at: int) -> list[int]:
    """The ids between a turn and the next one, from texts."""
    turn, after = played.turns[at], played.turns[at + 1]
    ended = turn.stop_reason == "end_of_turn"
    if after.action == SUMMARY:
        return CharacterChat().reply("Sum up Go {right}.", ended=ended)
    of_step = played.turns[at - 1] if turn.action == SUMMARY else turn
    text = following_text(
        fakes.actor_prompt(), goal="", observation=after.observation, actions=Corridor.actions,
        feedback=of_step.feedback or "",
    )  # fmt: skip
    return CharacterChat().reply(text, ended=ended)


def shown(played: PlayedEpisode, first: int, turn: int, kept: Callable[[Turn], list[int]] = written) -> list[int]:
    """The prompt of a turn that shows the turns from `first` on."""
    ids = opening(played.episode.guided)
    for at in range(first, turn):
        ids += kept(played.turns[at]) + replied(played, at)
    return ids


def check(played: PlayedEpisode, session: ScriptedSession) -> None:
    """The record is what went into the session; every output is trained once, where it was sampled."""
    by_id = {record.generation_id: record for record in played.generations}
    assert len(session.read[0]) == len(played.turns)
    everything = len(opening(played.episode.guided))
    for at, (turn, read) in enumerate(zip(played.turns, session.read[0], strict=True)):
        record = by_id[turn.generation_id]
        assert record.token_ids[: turn.first_token] == read
        assert record.token_ids[turn.first_token : turn.last_token] == written(turn)
        assert record.loss_mask[turn.first_token : turn.last_token] == [1] * len(written(turn))
        assert turn.dropped_tokens == everything - len(read)
        everything += len(written(turn)) + (len(replied(played, at)) if at + 1 < len(played.turns) else 0)
    assert sum(sum(record.loss_mask) for record in played.generations) == played.episode.tokens_sampled
    tables: dict[type, list[Any]] = {
        Episode: [played.episode], Turn: played.turns, Generation: [*played.generations, *played.answers]
    }  # fmt: skip
    check_tables({kind: table_of(kind, rows) for kind, rows in tables.items()}, where="test")


def words(lengths: Sequence[int]) -> Script:
    """Words that are no action but for `right` at their end."""
    return lambda turn: ("x" * lengths[turn % len(lengths)] + " right", turn % 3 != 0)


@pytest.mark.slow
@example(window=2, room=150, lengths=[3, 9, 1, 15])
@settings(deadline=None, max_examples=25)
@given(
    window=st.integers(1, 6),
    room=st.integers(60, 400),
    lengths=st.lists(st.integers(0, 15), min_size=1, max_size=5),
)
def test_a_window_is_cut_when_the_next_turn_does_not_fit(window: int, room: int, lengths: list[int]) -> None:
    context = len(opening()) + room
    played, session = play(words(lengths), WindowHistory(window=window), context=context)
    check(played, session)
    first, begun = 0, 1
    for at, turn in enumerate(played.turns):
        kept = [first, *range(max(first, at - 1 - window) + 1, at)] if at else [0]
        fit = next(each for each in kept if len(shown(played, each, at)) + NEW <= context)
        begun += fit != first
        first = fit
        assert session.read[0][at] == shown(played, first, at)
        assert turn.dropped_turns == first
    assert len(played.generations) == begun
    assert {record.stop_reason for record in played.generations[:-1]} <= {"continued"}
    if played.episode.stop_reason == "context_limit":  # not even the last turn fits
        assert room < 75
    else:
        assert played.episode.turns == 12


def test_a_row_goes_on_in_its_place_with_its_own_stream() -> None:
    appended, _ = play(words([5]), "append", context=10_000)
    cut, _ = play(words([5]), WindowHistory(window=1), context=len(opening()) + 120)
    assert len(cut.generations) > 3 and len(appended.generations) == 1

    def drawn(played: PlayedEpisode) -> list[float]:
        return [
            value
            for record in played.generations
            for value, own in zip(record.logprobs, record.loss_mask, strict=True)
            if own
        ]

    assert drawn(cut) == drawn(appended)


@pytest.mark.parametrize("guided", [False, True])
def test_a_summary_is_a_turn_and_no_step(guided: bool) -> None:
    at = len(opening(guided)) + 150
    script: Script = lambda turn: ("nothing legal" if turn in (2, 4, 7, 8) else "right", turn != 5)  # noqa: E731
    played, session = play(script, SummaryHistory(summarize=SummaryAt(at=at)), context=at + 200, guided=guided)
    assert any(one.action is None and two.action == SUMMARY for one, two in pairwise(played.turns)), "told behind it"
    check(played, session)
    summaries = [turn.turn for turn in played.turns if turn.action == SUMMARY]
    steps = [turn for turn in played.turns if turn.action != SUMMARY]
    assert len(summaries) >= 2 and len(steps) == 12 and played.episode.stop_reason == "turn_limit"
    assert played.episode.turns == len(played.turns) and len(played.generations) == len(summaries) + 1
    first = 0
    for index, turn in enumerate(played.turns):
        if index and played.turns[index - 1].action == SUMMARY:
            first = index - 1
        assert session.read[0][index] == shown(played, first, index)
        assert turn.dropped_turns == first
        if turn.action == SUMMARY:
            assert turn.valid and turn.feedback is None and turn.observation == "Sum up Go {right}."
            assert len(session.read[0][index]) + NEW <= at + 200
        elif index + 1 < len(played.turns) and played.turns[index + 1].action != SUMMARY:
            assert len(session.read[0][index + 1]) + NEW <= at
    assert played.episode.invalid_actions == sum(not turn.valid for turn in steps)
    text = render_trajectory(played.turns, played.episode.last_observation).text
    assert text.count("(asked to sum up what it knows)") == len(summaries)


def test_thoughts_are_left_out_of_later_prompts() -> None:
    script: Script = lambda turn: (f"({turn} is it right?) right" if turn != 3 else "right", turn != 4)  # noqa: E731
    played, session = play(script, "strip_thoughts", context=10_000, turns=8)
    check(played, session)

    def kept(turn: Turn) -> list[int]:
        ids = written(turn)
        return ids[ids.index(ord(")")) + 1 :] if ord(")") in ids else ids

    for at in range(8):
        assert session.read[0][at] == shown(played, 0, at, kept)
    assert len(played.generations) == 7, "a turn without a thought goes on in its sequence"
    assert [turn.dropped_turns for turn in played.turns] == [0] * 8
    assert played.turns[1].dropped_tokens == len("(0 is it right?)")


def test_thoughts_stay_between_calls_until_a_user_speaks() -> None:
    class Tools(CharacterChat):
        takes_tools = True

        def opening(self, messages: Any, tools: Sequence[Tool] = ()) -> list[int]:
            return super().opening(messages)

        def keeps_thoughts(self, call: str) -> bool:
            return call == "search"

    call = '{"arguments": {"words": "a"}, "name": "search"}'
    said = [f"(0){call}", f"(1){call}", "(2) I do not know.", f"(3){call}", f"(4){call}", "(5) over"]
    policy = ScriptedPolicy(lambda row, turn: (said[turn], True))
    policy.chat = Tools()
    shop = Shop(*[seen("Seen.", actions=TOOLS, legal=turn != 2) for turn in range(5)], last(), actions=TOOLS)
    [played] = play_wave(
        policy, shop, [EpisodeSlot(fakes.task(0, 50))], method=method("strip_thoughts"), sampling=SAMPLING,
        weights_digest="0" * 64, seed_of=lambda name: np.random.SeedSequence(1), stage="collect",
    )  # fmt: skip
    assert policy.session is not None
    thoughts = [re.findall(r"\((\d)\)", policy.chat.decode(read)) for read in policy.session.read[0]]
    assert thoughts == [[], ["0"], ["0", "1"], [], ["3"], ["3", "4"]]
    assert len(played.generations) == 2
    assert [turn.dropped_tokens for turn in played.turns] == [0, 0, 0, 9, 9, 9]


@pytest.mark.parametrize("history", [WindowHistory(window=2), "strip_thoughts"])
def test_a_guided_episode_as_its_free_version(history: Any) -> None:
    """Questions and their answers are left out of the later sequences, too."""
    script: Script = lambda turn: ("ASK: where?" if turn in (1, 5) else f"({turn}) right", True)  # noqa: E731
    context = len(opening(guided=True)) + len(fakes.OFFER) + 190 if history != "strip_thoughts" else 10_000
    played, _ = play(script, history, context=context, guided=True, search_and_ask=SearchAndAskConfig(uses=4))
    assert len(played.generations) > 2 and sum(turn.action == QUESTION for turn in played.turns) == 2
    for row, record in zip(stripped_contexts(played), played.generations, strict=True):
        text = CharacterChat().decode(row.token_ids)
        assert NOTE not in text and "ASK" not in text and "where?" not in text
        assert NOTE in CharacterChat().decode(record.token_ids)
        assert row.token_ids[: len(opening())] == opening()
        own = [turn for turn in played.turns if turn.generation_id == row.generation_id and turn.action != QUESTION]
        assert sum(row.loss_mask) == sum(turn.last_token - turn.first_token for turn in own)
        assert row.removed_tokens == len(record.token_ids) - len(row.token_ids)


def test_an_environment_that_breaks_after_a_summary_costs_its_episode() -> None:
    class Breaks(Corridor):
        def step_many(self, actions: Any) -> dict[int, Step]:
            if self.turn[0] == 4:
                raise KeyError("broken")
            return super().step_many(actions)

    policy = ScriptedPolicy(lambda row, turn: ("right", True), len(opening()) + 400)
    history = SummaryHistory(summarize=SummaryAt(at=len(opening()) + 60))
    [played] = play_wave(
        policy, Breaks(12), [EpisodeSlot(fakes.task(0, 50))], method=method(history), sampling=SAMPLING,
        weights_digest="0" * 64, seed_of=lambda name: np.random.SeedSequence(1), stage="collect",
    )  # fmt: skip
    assert played.episode.stop_reason == "error" and SUMMARY in [turn.action for turn in played.turns]
    assert played.episode.invalid_actions == 0


def test_a_summary_that_does_not_help_ends_at_the_context() -> None:
    """An opening that fills the context leaves no room for what it is about."""
    history = SummaryHistory(summarize=SummaryAt(at=40))
    played, _ = play(lambda turn: ("right", True), history, context=len(opening()) + NEW + 8)
    assert played.episode.stop_reason == "context_limit" and played.episode.turns == 1


def test_a_script_writes_no_summaries() -> None:
    class Chat(CharacterChat):
        def answer(self, text: str, *, call: bool = False) -> list[int]:
            return [*map(ord, text), fakes.END]

    history = SummaryHistory(summarize=SummaryAt(at=len(opening()) + 60))
    role = ScriptedRole(Chat(), 10_000)  # type: ignore[arg-type]
    for each, begun in ((history, 1), ("strip_thoughts", 12)):
        [played] = play_script(
            method(each), role, Corridor(12), [EpisodeSlot(fakes.task(0, 50))], lambda row: "(hm) right", stage="warm"
        )
        assert len(played.generations) == begun and played.episode.stop_reason == "turn_limit"
        assert all(turn.action == "right" for turn in played.turns)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"request": None}, "asks for no summary"),
        ({"context": 324}, "at 300 tokens, where it no longer fits"),
    ],
)
def test_summaries_that_are_impossible_are_refused(more: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        method(SummaryHistory(summarize=SummaryAt(at=300)), **more)
    with pytest.raises(ValidationError):
        RoleConfig(history={"window": 2, "summarize": {"at": 300}})  # type: ignore[arg-type]


def test_the_default_is_no_part_of_a_method() -> None:
    assert "history" not in RoleConfig().model_dump() and "summarize" not in fakes.actor_prompt().model_dump()
    assert RoleConfig(history={"window": 2}).model_dump()["history"] == {"window": 2}  # type: ignore[arg-type]
