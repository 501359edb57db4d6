"""Admission by trial in whole rounds: matched pairs decide what enters the bank, and pay who wrote it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from crl.bank.segments import text_digest
from crl.config import Experiment, Method
from crl.recipes.audit import problems_of
from crl.recipes.reading import recorded_bank
from crl.recipes.stage import Recipe
from crl.records import (
    TRIAL,
    BankEvent,
    BufferItem,
    Credit,
    Episode,
    Generation,
    Metric,
    Operation,
    Sample,
    Trial,
    TrialResult,
)
from crl.report.views import query
from crl.report.why import why
from tests.unit.recipes.played import VERDICTS, Played, Policy, Services, Session, act, experiment, one_by_one

ROUNDS, LAYOUTS = 3, 4
FEW = {"method__families__0__train_seeds__count": 64, "method__evaluation__every": 0}


class Seeing(Policy):
    """An actor that remembers how often a trial gave it a sampling stream, by round."""

    def __init__(self) -> None:
        super().__init__(act)
        self.seeds: dict[int, Counter[int]] = defaultdict(Counter)
        self.place = (0, "")

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        if self.place[1] == TRIAL:
            self.seeds[self.place[0]].update(seeds)
        return super().open(prompts, seeds, limit)


class Watching(Services):
    """Services with such an actor."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self.actor = Seeing()
        self._policies["actor"] = self.actor

    def order(self, recipe: Recipe, method: Method, rounds: int) -> Iterator[tuple[int, str]]:
        for self.actor.place in one_by_one(recipe, method, rounds):
            yield self.actor.place


def played(root: Path, rounds: int = ROUNDS, **changes: object) -> Played:
    trial = {"layouts": LAYOUTS, "threshold": 0.25, **changes.pop("trial", {})}  # type: ignore[dict-item]
    made = experiment(method__recipe__trial=trial, **FEW, **changes)
    services = Watching(made)
    return Played(root, made, rounds, services, services.order)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("tried"), trial={"holds": 1})


def pairs_of(run: Played, number: int) -> dict[str, list[tuple[Episode, Episode]]]:
    """By text: (with, without), put together by hand."""
    episodes = run.rows(Episode, TRIAL, number)
    free = {each.environment_seed: each for each in episodes if not each.guided}
    found = defaultdict(list)
    for each in episodes:
        if each.guided:
            found[each.content_digest or ""].append((each, free[each.environment_seed]))
    return found


def test_every_new_text_is_played_in_matched_pairs_and_the_difference_decides(tried: Played) -> None:
    seen = set()
    for number in range(1, ROUNDS + 1):
        texts = {row.operation_id: row for row in tried.rows(Operation, "distill", number)}
        pairs = pairs_of(tried, number)
        rows = tried.rows(Trial, TRIAL, number)
        assert {row.operation_id for row in rows} == set(texts), "every operation of these rounds writes a text"
        for row in rows:
            text = texts[row.operation_id].text or ""
            assert row.content_digest == text_digest(text)
            if row.tried_round != number:
                assert row.tried_round == number - 1, "a result holds one round"
                continue
            mine = pairs[row.content_digest]
            assert len(mine) == row.pairs == LAYOUTS
            expected = np.mean([with_.success for with_, _ in mine]) - np.mean([free.success for _, free in mine])
            assert row.difference == pytest.approx(expected)
            assert row.admitted == (expected >= 0.25) == (text == "win" and expected >= 0.25)
            seen.add((text, row.admitted))
    assert ("win", True) in seen and {text for text, admitted in seen if not admitted} >= set(VERDICTS) - {"win"}


def test_a_pair_has_one_layout_and_one_sampling_stream(tried: Played) -> None:
    for number in (1, 3):  # in round 2 the results of the first hold
        collected = {row.environment_seed for row in tried.rows(Episode, "collect", number)}
        episodes = tried.rows(Episode, TRIAL, number)
        assert {row.stream for row in episodes} == {TRIAL}
        seeds = {row.environment_seed for row in episodes}
        assert len(seeds) == LAYOUTS and not seeds & collected and max(seeds) < 64, (
            "training layouts, none of the round"
        )
        played_by = {row.weights_digest for row in tried.rows(Generation, TRIAL, number)}
        assert played_by == {row.weights_digest for row in tried.rows(Generation, "collect", number)}
        texts = len({row.content_digest for row in episodes})
        streams = tried.services.actor.seeds[number]
        assert len(streams) == LAYOUTS and set(streams.values()) == {texts}, (
            "each note, and none, has the layout's stream"
        )


def test_what_fails_stays_out_of_the_bank_and_says_why(tried: Played) -> None:
    for number in range(1, ROUNDS + 1):
        events = {row.operation_id: row for row in tried.rows(BankEvent, "consolidate", number) if row.operation_id}
        for row in tried.rows(Trial, TRIAL, number):
            event = events[row.operation_id]
            assert (event.kind == "add") == row.admitted
            assert row.admitted or (event.kind, event.reason) == ("rejected", "failed_trial")
    bank = recorded_bank(tried.run, tried.recipe, ROUNDS)
    assert len(bank) and set(bank.table["content_digest"].to_pylist()) == {text_digest("win")}
    assert problems_of(tried.run, tried.recipe) == []


def test_the_difference_pays_the_writer_instead_of_uses(tried: Played) -> None:
    trained: dict[str, float] = {}
    expected = {
        row.generation_id: 2 * (row.difference or 0.0)
        for number in range(1, ROUNDS + 1)
        for row in tried.rows(Trial, TRIAL, number)
    }
    assert any(tried.rows(Credit, "credit", number) for number in range(2, ROUNDS + 1)), "notes guided episodes"
    for number in range(1, ROUNDS + 1):
        for row in tried.rows(Sample, "credit", number):
            if row.objective == "cispo":
                assert row.generation_id not in trained, "an output is trained once"
                trained[row.generation_id] = row.reward
    waiting = {row.generation_id: row for row in tried.rows(BufferItem, "credit", ROUNDS) if row.status == "waiting"}
    assert trained and {row.kind for row in waiting.values()} <= {"scored"}
    assert trained | {name: row.score_sum for name, row in waiting.items()} == pytest.approx(expected)


def test_results_are_kept_as_long_as_they_hold(tried: Played) -> None:
    for number in range(1, ROUNDS + 1):
        kept = {row.content_digest: row.round for row in tried.rows(TrialResult, TRIAL, number)}
        assert set(kept.values()) <= {number, number - 1}
        texts = set(pairs_of(tried, number))
        assert {digest for digest, last in kept.items() if last == number} == texts
    figures = {row.name: row.value for row in tried.rows(Metric, "credit", 1)}
    assert figures["trial_episodes"] == LAYOUTS * 6 and figures["trial_texts"] == 5


def test_a_person_sees_the_trial_of_a_note(tried: Played) -> None:
    bank = recorded_bank(tried.run, tried.recipe, ROUNDS)
    entry = bank.entries()[0]
    story = why(tried.run.path, entry.entry_id)
    told = story.versions[0].tried
    assert told is not None and told.admitted and told.pairs == LAYOUTS
    assert all(use.episode_id.startswith("r") for use in story.uses), "what a trial played is no use"
    _, counted = query(tried.run.path, "SELECT count(*)::INT, sum(admitted::INT)::INT FROM trials WHERE round = 1")
    rows = tried.rows(Trial, TRIAL, 1)
    assert counted == [(len(rows), sum(row.admitted for row in rows))]


def test_equal_settings_give_equal_digests_whatever_ran_before(tried: Played, tmp_path: Path) -> None:
    assert played(tmp_path, trial={"holds": 1}).digests() == tried.digests()
