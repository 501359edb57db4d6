"""The extractor's buffer over rounds: entry, uses, selection, re-entry. Nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import ExtractorObjective
from crl.credit.buffer import (
    SCORED,
    USED,
    Earned,
    HeldText,
    Output,
    buffer_metrics,
    earners,
    fill_buffer,
    reweight,
)
from crl.credit.samples import select_batches
from crl.credit.uses import earned_when_written
from crl.errors import RecordDamaged
from crl.records import BufferItem, Distillation, UseReward


def use(generation_id: str, reward: float, round: int = 1, entry: str = "m", episode: str = "e") -> UseReward:
    return UseReward(
        round=round, episode_id=episode, entry_id=entry, generation_id=generation_id, basis="outcome", outcome=reward,
        usefulness=None, critic_score=None, reward=reward,
    )  # fmt: skip


def output(generation_id: str, verdict: str, round: int = 1, kind: str = "distill", episode: str = "e") -> Distillation:
    return Distillation(
        distillation_id=f"d-{generation_id}", round=round, kind=kind, family="room", episode_id=episode,
        guiding_entry_id=None, source_entry_ids=[], generation_id=generation_id, format="lines", reason_code="ok",
        verdict=verdict, operations=1, turns=1, turns_shown=1,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("scored", "alarms"), [([9, 0, 0], []), ([21, 0, 0, 0], [3]), ([9, 4, 4, 4], []), ([9, 9, 9, 9], [4])]
)
def test_a_burst_is_no_alarm_and_what_is_left_for_longer_than_two_rounds_is_one(
    scored: list[int], alarms: list[int]
) -> None:
    """At most four of what is scored are trained in a round."""
    config = ExtractorObjective(batch=2, max_batches=2)
    rows: list[BufferItem] = []
    found = []
    for number, count in enumerate(scored, start=1):
        uses = [use(f"x{number}-{index}", (-1.0) ** index, number) for index in range(count)]
        batches, rows = select_batches(fill(rows, uses, [], round=number), config, round=number)
        assert len(batches) <= 2
        told = {row.name: row for row in buffer_metrics(rows, round=number, config=config, trains=True)}
        found += [number] if told["buffer_waiting"].alarm else []
    assert found == alarms


def text(generation_id: str, entry: str = "m") -> HeldText:
    return HeldText(entry, generation_id)


def fill(
    previous: list[BufferItem],
    uses: list[UseReward],
    outputs: list[Distillation],
    *,
    round: int = 1,
    free_means: dict[str, float] | None = None,
    imported: frozenset[str] = frozenset(),
    repeats: dict[str, list[HeldText]] | None = None,
    held: set[HeldText] | None = None,
    **settings: Any,
) -> list[BufferItem]:
    """A round's uses and outputs; whatever was used and not written in the round is of round 0."""
    of = earners(previous, imported)
    earned = [Earned(name, use.reward) for use in uses for name in of(use)]
    earned += earned_when_written(outputs, free_means or {}, ExtractorObjective(**settings))
    written = {row.generation_id: (row.round, row.kind) for row in outputs}
    origins = {each.generation_id: (0, "distill") for each in earned} | written
    listed = [Output(name, origin, (repeats or {}).get(name, ())) for name, origin in origins.items()]
    return fill_buffer(previous, listed, earned, held, round=round)


def test_an_output_enters_at_its_first_use_and_collects_uses_while_it_waits() -> None:
    rows = fill([], [use("x", 1.0), use("y", -1.0), use("x", -1.0)], [output("z", "add")])
    assert [(row.generation_id, row.uses, row.score_sum, row.status) for row in rows] == [
        ("x", 2, 0.0, "waiting"),
        ("y", 1, -1.0, "waiting"),
    ]
    rows = fill(rows, [use("y", 1.0)], [], round=2)
    assert [(row.generation_id, row.uses, row.score_sum, row.entered_round) for row in rows] == [
        ("x", 2, 0.0, 1),
        ("y", 2, 0.0, 1),
    ]


def test_malformed_outputs_enter_at_once_with_their_reward_merges_too() -> None:
    rows = fill([], [], [output("x", "malformed"), output("m", "malformed", kind="merge"), output("y", "add")])
    assert [(row.generation_id, row.kind, row.uses, row.score_sum) for row in rows] == [
        ("x", "malformed", 1, -2.0),
        ("m", "malformed", 1, -2.0),
    ]


@pytest.mark.parametrize(
    ("setting", "expected"), [("none", []), ("free_mean", [("x", 0.5)]), (-0.25, [("x", -0.25), ("y", -0.25)])]
)
def test_return_is_scored_as_configured(setting: str | float, expected: list[tuple[str, float]]) -> None:
    outputs = [output("x", "return", episode="a"), output("y", "return", episode="b")]
    rows = fill([], [], outputs, return_reward=setting, free_means={"a": 0.5})
    assert [(row.generation_id, row.score_sum) for row in rows] == expected
    assert all(row.kind == "return" for row in rows)


def test_nothing_is_selected_before_a_whole_batch_waits_then_the_oldest_are() -> None:
    config = ExtractorObjective(batch=3)
    rows = fill([], [use("a", 1.0), use("b", 1.0)], [])
    assert select_batches(rows, config, round=1) == ([], rows)
    rows = fill(rows, [use("d", -1.0, 2), use("c", 1.0, 2)], [], round=2)
    [selected], after = select_batches(rows, config, round=2)
    assert [row.generation_id for row in selected] == ["a", "b", "d"]
    assert {row.generation_id: row.status for row in after} == {
        "a": "selected", "b": "selected", "d": "selected", "c": "waiting",
    }  # fmt: skip
    assert [row.train_count for row in selected] == [0, 0, 0], "eq. 7 counts earlier trainings"
    assert [(row.train_count, row.last_trained_round) for row in after if row.status == "selected"] == [(1, 2)] * 3


def test_a_trained_output_waits_for_new_uses_and_re_enters_with_them_alone() -> None:
    config = ExtractorObjective(batch=2)
    rows = fill([], [use("a", 1.0), use("b", -1.0)], [output("bad", "malformed")])
    _, rows = select_batches(rows, config, round=1)
    rows = fill(rows, [], [], round=2)
    assert {row.generation_id: (row.status, row.uses) for row in rows} == {
        "a": ("trained", 0), "b": ("trained", 0), "bad": ("waiting", 1),
    }  # fmt: skip
    rows = fill(rows, [use("b", 1.0, 3)], [], round=3)
    again = next(row for row in rows if row.generation_id == "b")
    assert (again.status, again.uses, again.score_sum, again.entered_round) == ("waiting", 1, 1.0, 3)
    assert (again.train_count, again.last_trained_round) == (1, 1)
    [selected], _ = select_batches(rows, config, round=3)
    assert [row.generation_id for row in selected] == ["bad", "b"], "a re-entry queues behind those that waited"


def test_an_output_that_eq_7_gives_no_weight_keeps_waiting() -> None:
    config = ExtractorObjective(batch=2, delta=3)
    _, rows = select_batches(fill([], [use("a", 1.0), use("b", -1.0)], []), config, round=1)
    rows = fill(rows, [use("a", 1.0, 2), use("b", -1.0, 2)], [], round=2)
    assert select_batches(rows, config, round=3)[0] == []
    [selected] = select_batches(rows, config, round=4)[0]
    assert [row.generation_id for row in selected] == ["a", "b"]


def test_a_round_trains_as_many_batches_as_are_full_up_to_a_bound() -> None:
    """64 used and 38 malformed outputs a round: with one batch a round 2,536 would wait after 60 rounds."""
    rows: list[BufferItem] = []
    for number in range(1, 61):
        uses = [use(f"x{number}-{index}", 1.0 if index % 3 else -1.0, number) for index in range(64)]
        malformed = [output(f"bad-{number}-{index}", "malformed", number) for index in range(38)]
        rows = fill(rows, uses, malformed, round=number)
        batches, rows = select_batches(rows, ExtractorObjective(), round=number)
        assert all(len(batch) == 64 for batch in batches)
        waiting = [row for row in rows if row.status == "waiting"]
        assert len(waiting) < 64, "nothing piles up"
        assert max((number - row.entered_round for batch in batches for row in batch), default=0) <= 1
    one = ExtractorObjective(max_batches=1)
    flood = fill([], [use(f"x{index}", 1.0 if index % 3 else -1.0) for index in range(300)], [])
    assert [len(select_batches(flood, config, round=1)[0]) for config in (one, ExtractorObjective())] == [1, 4]


def test_a_batch_of_equal_rewards_is_not_consumed() -> None:
    """It would train nothing: uses would be lost and eq. 7 would count a training that never was."""
    config = ExtractorObjective(batch=3)
    rows = fill([], [use(name, -1.0) for name in "abcd"], [])
    assert select_batches(rows, config, round=1) == ([], rows)
    rows = fill(rows, [use("e", -1.0, 2), use("f", 1.0, 2)], [], round=2)
    [selected], after = select_batches(rows, config, round=2)
    assert [row.generation_id for row in selected] == ["a", "b", "f"], "the oldest that differs takes the last place"
    assert [row.generation_id for row in after if row.status == "waiting"] == ["c", "d", "e"]


def test_malformed_outputs_are_unscored_where_that_is_asked_for() -> None:
    """Eq. 3 over used outputs alone, as the paper has it."""
    outputs = [output("bad", "malformed"), output("x", "add")]
    assert fill([], [], outputs, malformed_reward="none") == []
    assert [row.score_sum for row in fill([], [], outputs, malformed_reward=-1.5)] == [-1.5]


def test_an_output_that_repeats_a_text_shares_the_uses_of_that_text_from_then_on() -> None:
    held = {text("first")}
    rows = fill([], [use("first", -1.0)], [output("again", "add")], repeats={"again": [text("first")]}, held=held)
    assert {row.generation_id: (row.uses, row.kind) for row in rows} == {"first": (1, "used"), "again": (0, "used")}
    config = ExtractorObjective(batch=2)
    assert select_batches(rows, config, round=1)[0] == [], "what has no use yet is not ripe"
    rows = fill(rows, [use("first", 1.0, 2)], [], round=2, held=held)
    assert {row.generation_id: (row.uses, row.score_sum) for row in rows} == {"first": (2, 0.0), "again": (1, 1.0)}
    [selected], rows = select_batches(rows, config, round=2)
    assert {row.generation_id for row in selected} == {"first", "again"}
    rows = fill(rows, [use("first", 1.0, 3)], [], round=3, held=held)
    assert {row.generation_id: (row.status, row.uses) for row in rows} == {
        "first": ("waiting", 1), "again": ("waiting", 1),
    }, "both re-enter with new uses"  # fmt: skip


def test_of_an_output_with_several_texts_the_repeated_ones_count_alone_and_each_use_once() -> None:
    one, two = text("first", "e1"), text("first", "e2")
    repeats = {"both": [one, two], "half": [one]}
    rows = fill([], [], [output("both", "add"), output("half", "add")], repeats=repeats, held={one, two})
    uses = [use("first", 1.0, 2, "e1"), use("first", -1.0, 2, "e2"), use("first", -1.0, 2, "e2")]
    rows = fill(rows, uses, [], round=2, held={one, two})
    assert {row.generation_id: (row.uses, row.score_sum) for row in rows} == {
        "first": (3, -1.0), "both": (3, -1.0), "half": (1, 1.0),
    }  # fmt: skip
    again = fill([], [], [output("both", "add"), output("half", "add")], repeats=repeats, held={two})
    assert {row.generation_id: row.status for row in again} == {"both": "waiting", "half": "dropped"}
    rewritten = fill(again, [use("later", 1.0, 2, "e2")], [], round=2, held={text("later", "e2")})
    assert {row.generation_id: row.uses for row in rewritten} == {"later": 1, "both": 0}, "the entry says another text"


def test_an_output_that_repeats_an_imported_text_is_credited_though_the_import_trains_nobody() -> None:
    held = {text("other-run")}
    rows = fill([], [], [output("again", "add")], repeats={"again": [text("other-run")]}, held=held)
    rows = fill(rows, [use("other-run", 1.0, 2)], [], round=2, imported=frozenset({"other-run"}), held=held)
    assert {row.generation_id: row.uses for row in rows} == {"again": 1}


def test_what_can_never_be_used_again_ends_and_is_dropped_only_where_it_was_never_scored() -> None:
    held, repeats = {text("a"), text("b")}, {"again": [text("a")]}
    rows = fill([], [use("a", 1.0), use("b", -1.0)], [output("again", "add")], repeats=repeats, held=held)
    _, rows = select_batches(rows, ExtractorObjective(batch=2), round=1)
    rows = fill(rows, [], [], round=2, held={text("b")})
    assert {row.generation_id: (row.status, row.reason) for row in rows} == {
        "b": ("trained", None), "again": ("dropped", "text_left_bank"),
    }, "`a` was trained and waited for new uses: nothing of it is lost"  # fmt: skip
    told = buffer_metrics(rows, round=2, config=ExtractorObjective(), trains=True)
    assert {row.name: row.value for row in told}["buffer_dropped"] == 1
    assert [row.generation_id for row in fill(rows, [], [], round=3, held={text("b")})] == ["b"]
    waiting = fill([], [use("a", 1.0)], [], held=set())
    assert waiting[0].status == "waiting", "uses that were scored are trained, wherever the text is now"


def test_reweighting_of_eq_7() -> None:
    config = ExtractorObjective(alpha=0.5, delta=1)
    assert reweight(0, None, round=9, config=config) == 1.0
    assert reweight(3, 8, round=9, config=config) == pytest.approx(0.5)
    assert reweight(3, 9, round=9, config=config) == 0.0


def test_a_use_of_an_output_nobody_wrote_is_damage() -> None:
    with pytest.raises(RecordDamaged, match="x-7"):
        fill_buffer([], [], [Earned("x-7", 1.0)], None, round=1)


def test_what_is_scored_once_and_for_all_has_no_share_in_the_uses_of_a_text_that_it_repeats() -> None:
    repeats = [Output("once", (1, "distill"), [text("first")]), Output("also", (1, "distill"), [text("first")])]
    rows = fill_buffer([], repeats, [Earned("also", 0.5), Earned("once", 2.0, SCORED)], None, round=1)
    assert [(row.generation_id, row.kind, row.score_sum, row.repeats) for row in rows] == [
        ("once", SCORED, 2.0, []), ("also", USED, 0.5, ["first"]),
    ], "they enter in the order of the outputs"  # fmt: skip
    rows = fill(rows, [use("first", -1.0, 2)], [], round=2)
    assert {row.generation_id: (row.uses, row.score_sum) for row in rows} == {
        "once": (1, 2.0), "also": (2, -0.5), "first": (1, -1.0),
    }  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.lists(st.tuples(st.integers(0, 12), st.sampled_from([1.0, -1.0])), max_size=12),
            st.integers(0, 3),
        ),
        min_size=1,
        max_size=10,
    ),
    st.integers(2, 5),
    st.integers(0, 3),
)
def test_every_use_is_trained_exactly_once_or_still_waits(
    rounds: list[tuple[list[tuple[int, float]], int]], batch: int, delta: int
) -> None:
    config = ExtractorObjective(batch=batch, delta=delta)
    rows: list[BufferItem] = []
    trained_uses = trained_score = given_uses = given_score = 0.0
    orders: dict[int, tuple[str, int]] = {}
    for number, (uses, malformed) in enumerate(rounds, start=1):
        credits = [use(f"x{index}", outcome, number) for index, outcome in uses]
        outputs = [output(f"bad-{number}-{index}", "malformed", number) for index in range(malformed)]
        rows = fill(rows, credits, outputs, round=number)
        given_uses += len(uses) + malformed
        given_score += sum(outcome for _, outcome in uses) - 2.0 * malformed
        for row in rows:
            key = (row.generation_id, row.entered_round)
            assert orders.setdefault(row.entered_order, key) == key, "an order of entry is used once in a run"
        batches, rows = select_batches(rows, config, round=number)
        assert all(len(selected) == batch for selected in batches)
        assert all(len({row.score_sum / row.uses for row in selected}) > 1 for selected in batches)
        selected = [row for each in batches for row in each]
        trained_uses += sum(row.uses for row in selected)
        trained_score += sum(row.score_sum for row in selected)
        waiting = [row for row in rows if row.status == "waiting"]
        assert trained_uses + sum(row.uses for row in waiting) == given_uses
        assert trained_score + sum(row.score_sum for row in waiting) == given_score
        for trains in (True, False):
            told = {row.name: row for row in buffer_metrics(rows, round=number, config=config, trains=trains)}
            backlog = told["buffer_waiting"]
            assert backlog.value == len(waiting)
            oldest = max((number - row.entered_round for row in waiting if row.uses), default=0)
            left = len(waiting) > 2 * max(batch, len(selected)) and oldest >= 2
            assert (backlog.alarm is not None) == (trains and left), "more than two rounds take"
