"""The stage `credit` over whole rounds: whose outputs enter the buffer, and what a repeated text is worth."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from crl.config import Experiment
from crl.credit.buffer import HeldText
from crl.recipes.complementary.credit import held_texts
from crl.records import BankEvent, BufferItem, Metric, Operation, Retrieval, Sample, UseReward
from crl.report.curves import bank_charts
from crl.report.summary import summarize
from crl.rounds.recipe import recorded_bank
from tests.unit.recipes.played import Played, Policy, Services, act, experiment


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["static_online", "offline_bank"])
def test_a_recipe_that_trains_no_extractor_fills_no_buffer(tmp_path: Path, recipe: str) -> None:
    played = Played(tmp_path, experiment(method__recipe__kind=recipe, method__recipe__warm_up_rounds=1), 3)
    for number in (1, 2, 3):
        assert played.rows(BufferItem, "credit", number) == []
        assert not any(row.name.startswith("buffer") for row in played.rows(Metric, "credit", number))
    told = {}
    for number in (2, 3):
        searched = recorded_bank(played.run, played.recipe, number - 1).table
        written = dict(zip(searched["entry_id"].to_pylist(), searched["updated_round"].to_pylist(), strict=True))
        ages = [number - written[row.entry_id] for row in played.rows(Retrieval, "plan", number) if row.chosen]
        metrics = {row.name: row.value for row in played.rows(Metric, "health", number)}
        assert (metrics["used_age_mean"], metrics["used_age_max"]) == (pytest.approx(np.mean(ages)), max(ages))
        whole = [number - each for each in written.values()]
        assert (metrics["bank_age_mean"], metrics["bank_age_max"]) == (pytest.approx(np.mean(whole)), max(whole))
        told[number] = metrics["used_age_mean"]
    assert recipe != "offline_bank" or told == {2: 1.0, 3: 2.0}, "its bank grows older"
    [chart] = [each for each in bank_charts(summarize(played.run.path)) if each.title.startswith("mean age")]
    shown = {row[0]: row[chart.columns.index("used")] for row in chart.rows}
    assert {number: float(shown[str(number)]) for number in told} == pytest.approx(told, rel=1e-2)


@pytest.mark.slow
def test_a_duplicate_is_scored_by_the_uses_of_the_entry_it_repeats(tmp_path: Path) -> None:
    """The extractor knows five texts: soon it can only repeat itself, and that is no way out of being scored."""
    changes = {
        "method__recipe__bank__duplicates": "reject",
        "method__recipe__extractor_objective__credit": "running_usefulness",
    }
    played = Played(tmp_path, experiment(**changes), 4)
    repeated = [
        (number, row) for number in range(1, 5)
        for row in played.rows(BankEvent, "consolidate", number) if row.repeats is not None
    ]  # fmt: skip
    assert len(repeated) > 10
    operations = {row.operation_id: row for number in range(1, 5) for row in played.rows(Operation, "distill", number)}
    first = {
        number: {row.generation_id: row for row in played.rows(BufferItem, "credit", number)} for number in range(1, 5)
    }
    for number, event in repeated:
        item = first[number][operations[event.operation_id or ""].generation_id]
        assert (item.kind, item.uses) == ("used", 0) and item.repeats, "it enters at once, without a use"
    gained = 0
    for number in (2, 3, 4):
        earned: dict[tuple[str, str], list[float]] = {}
        for use in played.rows(UseReward, "credit", number):
            earned.setdefault((use.entry_id, use.generation_id), []).append(use.reward)
        for before in first[number - 1].values():
            if before.repeats and before.status == "waiting":
                texts = {*zip(before.repeated_entries, before.repeats, strict=True)}
                expected = [
                    reward for (entry, output), rewards in earned.items() for reward in rewards
                    if output == before.generation_id or (entry, output) in texts
                ]  # fmt: skip
                now = first[number][before.generation_id]
                assert now.uses == before.uses + len(expected)
                assert now.score_sum == pytest.approx(before.score_sum + sum(expected))
                gained += len(expected)
    assert gained > 10
    trained = {row.generation_id for number in range(1, 5) for row in played.rows(Sample, "credit", number)}
    assert trained & {operations[event.operation_id or ""].generation_id for _, event in repeated}, "and is trained"


class Pairs(Services):
    """Each output of the extractor writes two texts: soon both are repetitions of one earlier output's."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        outputs = [
            json.dumps([{"operation": "add", "experience": text} for text in texts])
            for texts in (("fine", "win"), ("win", "fine"), ("win",))
        ]
        first = iter(outputs[:1])
        self._policies["extractor"] = Policy(
            lambda read, generator: next(first, None) or str(generator.choice(outputs))
        )


@pytest.mark.slow
def test_an_output_that_repeats_two_texts_of_another_names_each_and_counts_a_use_once(tmp_path: Path) -> None:
    changes = {
        "method__recipe__bank__duplicates": "reject",
        "method__recipe__extractor_objective__credit": "running_usefulness",
    }
    made = experiment(method__recipe__distill__format="json", **changes)
    played = Played(tmp_path, made, 2, Pairs(made))
    first = {row.generation_id: row for row in played.rows(BufferItem, "credit", 1)}
    texts = {name: list(zip(row.repeated_entries, row.repeats, strict=True)) for name, row in first.items()}
    assert {len(named) for named in texts.values()} == {1, 2}
    assert any(len(set(row.repeats)) < len(row.repeats) for row in first.values()), "two texts of one output"
    uses = played.rows(UseReward, "credit", 2)
    assert len({use.entry_id for use in uses}) == 2
    for name, row in {each.generation_id: each for each in played.rows(BufferItem, "credit", 2)}.items():
        if name in first:
            mine = [use for use in uses if (use.entry_id, use.generation_id) in texts[name]]
            assert row.uses == len(mine) and row.score_sum == pytest.approx(sum(use.reward for use in mine))


def lose_when_guided(read: str, generator: np.random.Generator) -> str:
    return "wait" if "Advice:" in read else act(read, generator)


class AllNotesFail(Services):
    """Whatever is noted, the game is lost: every use earns -1."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self._policies["actor"] = Policy(lose_when_guided)


@pytest.mark.slow
def test_notes_that_all_fail_are_no_backlog_in_warm_up_and_a_collapse_once_the_extractor_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal rewards train nothing, so no batch is ever selected: without a sign of it the run would go on for ever."""
    monkeypatch.setattr("crl.rounds.alarms.ROUNDS", 2)
    # A text that is repeated enters unscored: it waits for a use, and nobody waits for it.
    made = experiment(method__recipe__warm_up_rounds=3, method__recipe__bank__duplicates="reject")
    played = Played(tmp_path, made, 5, AllNotesFail(made))
    batch = made.method.recipe.extractor_objective.batch
    shown = {row.round: row for row in summarize(played.run.path) if row.label == str(row.round)}
    metrics, alarms = {}, {}
    for number in range(1, 6):
        rows = [*played.rows(Metric, "credit", number), *played.rows(Metric, "health", number)]
        alarms[number] = {row.name: row.alarm for row in rows if row.alarm is not None}
        metrics[number] = {(row.stage, row.name): row.value for row in rows}
        buffer = played.rows(BufferItem, "credit", number)
        scored = [row for row in buffer if row.uses]
        assert {row.status for row in buffer} <= {"waiting"} and {row.score_sum / row.uses for row in scored} <= {-1.0}
        oldest = max((number - row.entered_round for row in scored), default=0)
        assert metrics[number]["credit", "buffer_oldest_wait"] == oldest
        assert metrics[number]["health", "buffer_oldest_wait"] == oldest
        assert shown[number].buffer == metrics[number]["credit", "buffer_waiting"] == len(scored)
    assert played.rows(BufferItem, "credit", 1) and shown[1].buffer == 0, "repeated texts wait for a first use"
    assert min(shown[number].buffer or 0 for number in (3, 4, 5)) > 2 * batch
    assert [number for number in range(1, 6) if "buffer_waiting" in alarms[number]] == [4, 5]
    name = ("health", "extractor_without_gradient")
    assert [metrics[number].get(name) for number in range(1, 6)] == [None, None, None, 1.0, 1.0]
    assert "collapsed" not in alarms[4]
    told = str(alarms[5]["collapsed"])
    assert "all rewards of its full batches are equal, since round 4" in told


@pytest.mark.slow
def test_outputs_of_the_round_that_falls_back_wait_for_an_update_that_trains(tmp_path: Path) -> None:
    def writing(read: str, generator: np.random.Generator) -> str:
        return "what?" if generator.random() < 0.88 else f"ADD: {generator.choice(['lose', 'odd', 'win'])}"

    made = experiment(
        method__on_collapse="fall_back", method__seed=1, method__recipe__extractor_objective__batch=2,
        method__families__0__train_seeds__count=64,
    )  # fmt: skip
    services = Services(made)
    services._policies["extractor"] = Policy(writing)
    played = Played(tmp_path, made, 7, services)
    decided = {row.name for row in played.rows(Metric, "health", 5)}
    assert "fall_back_to" in decided, "else nothing of what follows is tested"
    selected, waiting = (
        {
            number: {row.generation_id for row in played.rows(BufferItem, "credit", number) if row.status == status}
            for number in range(1, 8)
        }
        for status in ("selected", "waiting")
    )
    trained = {
        number: {row.generation_id for row in played.rows(Sample, "credit", number) if row.objective == "cispo"}
        for number in range(1, 8)
    }
    assert selected == trained and selected[5] and selected[7]
    assert selected[6] == set() and waiting[5] <= waiting[6] and selected[7] & waiting[6]


def test_a_text_that_only_the_coming_bank_holds_is_still_held() -> None:
    def bank(*writers: str) -> pa.Table:
        return pa.table({"entry_id": [f"e-{each}" for each in writers], "generation_id": list(writers)})

    item = SimpleNamespace(generation_id="x", repeats=["y"])
    held = held_texts([bank("z", "y"), bank("x", "z")], cast(Any, [item]), {})
    assert held == {HeldText("e-y", "y"), HeldText("e-x", "x")}
