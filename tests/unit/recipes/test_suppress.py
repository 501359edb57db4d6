"""Suppression and the two other ways to give credit, in whole rounds; they are sums of rows that anyone can redo."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.bank.segments import load_texts
from crl.records import (
    BufferItem,
    CandidateUtility,
    Credit,
    Distillation,
    Episode,
    Evaluation,
    Metric,
    Retrieval,
    Sample,
    Suppression,
    TextEffect,
    UseReward,
)
from crl.rounds.recipe import recorded_bank
from tests.unit.recipes.played import Played, experiment

ROUNDS = 3
FEW = {"method__families__0__evaluation_seeds__count": 4, "method__evaluation__every": ROUNDS}


@pytest.fixture(scope="module")
def masked(tmp_path_factory: pytest.TempPathFactory) -> Played:
    made = experiment(method__recipe__suppress={"min_uses": 2, "standard_errors": 0.2, "max_effect": -0.1}, **FEW)
    return Played(tmp_path_factory.mktemp("masked"), made, ROUNDS)


@pytest.mark.slow
def test_effects_are_those_of_the_credits_of_all_rounds(masked: Played) -> None:
    values: dict[tuple[str, str], list[float]] = defaultdict(list)
    family = masked.method.families[0].name
    for number in range(1, ROUNDS + 1):
        for row in masked.rows(Credit, "credit", number):
            if row.guided_minus_free is not None:
                values[family, row.content_digest].append(row.guided_minus_free)
        effects = {(row.family, row.content_digest): row for row in masked.rows(TextEffect, "effects", number)}
        assert set(effects) == set(values)
        for key, effect in effects.items():
            assert (effect.count, effect.mean) == pytest.approx((len(values[key]), np.mean(values[key])))
    suppressed = [effect.suppressed for effect in effects.values()]
    assert any(suppressed) and not all(suppressed)


def test_what_is_suppressed_is_retrieved_no_more_and_stays_in_the_bank(masked: Played) -> None:
    seen = 0
    for number in range(2, ROUNDS + 1):
        harmful = {row.content_digest for row in masked.rows(TextEffect, "effects", number - 1) if row.suppressed}
        bank = recorded_bank(masked.run, masked.recipe, number - 1)
        held = {row.entry_id for row in bank.entries() if row.content_digest in harmful}
        assert {row.entry_id for row in masked.rows(Suppression, "plan", number)} == held
        rows = masked.rows(Retrieval, "plan", number)
        assert rows and not {row.content_digest for row in rows} & harmful
        seen += len(held)
        later = {row.entry_id for row in recorded_bank(masked.run, masked.recipe, number).entries()}
        assert held <= later
    assert seen and problems_of(masked.run, masked.recipe) == []


def test_evaluation_passes_it_over_as_well(masked: Played) -> None:
    harmful = {row.content_digest for row in masked.rows(TextEffect, "effects", ROUNDS) if row.suppressed}
    bank = recorded_bank(masked.run, masked.recipe, ROUNDS)
    digest_of = {row.entry_id: row.content_digest for row in bank.entries()}
    shown = {digest_of[name] for row in masked.rows(Evaluation, "evaluate", ROUNDS) for name in row.entry_ids}
    assert shown and not shown & harmful and set(digest_of.values()) & harmful
    texts = load_texts(masked.run.path, bank.table)
    assert "win" in {texts[digest] for digest in shown}
    metrics = {row.name: row.value for row in masked.rows(Metric, "effects", ROUNDS)}
    assert metrics["texts_suppressed"] == len(harmful)


@pytest.mark.slow
def test_the_same_run_has_the_same_digests(masked: Played, tmp_path: Path) -> None:
    made = experiment(method__recipe__suppress={"min_uses": 2, "standard_errors": 0.2, "max_effect": -0.1}, **FEW)
    assert Played(tmp_path, made, ROUNDS).digests() == masked.digests()


@pytest.mark.slow
def test_by_other_tasks_an_output_is_trained_on_one_mean_a_task(tmp_path: Path) -> None:
    """An output that repeated a text earns by the uses of that text, but on the task that it came from itself."""
    few = {"method__families__0__train_seeds__count": 6, "method__evaluation__every": 0}
    credit = {
        "method__recipe__extractor_objective__credit": "other_tasks",
        "method__recipe__bank__duplicates": "reject",
    }
    made = experiment(**credit, **few)
    run = Played(tmp_path, made, ROUNDS)
    expected: dict[str, list[float]] = defaultdict(list)
    own: dict[str, str] = {}
    skipped, others_own = 0, 0
    for number in range(1, ROUNDS + 1):
        episodes = {row.episode_id: row for row in run.rows(Episode, "collect", number)}
        items = run.rows(BufferItem, "credit", number - 1) if number > 1 else []
        repeated = [(row.generation_id, set(zip(row.repeated_entries, row.repeats, strict=True))) for row in items]
        uses = {row.episode_id: row for row in run.rows(UseReward, "credit", number)}
        of_task: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in run.rows(Credit, "credit", number):
            task = episodes[row.episode_id].task_digest
            assert (uses[row.episode_id].basis == "own_task") == (own[row.generation_id] == task)
            if own[row.generation_id] == task:
                skipped += 1
                assert uses[row.episode_id].reward == 0
            repeating = [name for name, texts in repeated if (row.entry_id, row.generation_id) in texts]
            for earner in (row.generation_id, *repeating):
                if own[earner] != task:
                    of_task[earner, task].append(row.outcome)
            others_own += own[row.generation_id] == task and any(own[name] != task for name in repeating)
        for (writer, _), outcomes in of_task.items():
            expected[writer].append(float(np.mean(outcomes)))
        for output in run.rows(Distillation, "distill", number):
            own[output.generation_id] = episodes[output.episode_id or ""].task_digest
    assert skipped, "some note was used on the task that it came from"
    assert others_own, "which was not that of an output which repeated it"
    total: dict[str, float] = defaultdict(float)
    for number in range(1, ROUNDS + 1):
        for item in run.rows(BufferItem, "credit", number):
            if item.status == "selected" or (item.status == "waiting" and number == ROUNDS):
                total[item.generation_id] += item.score_sum
    assert {name: value for name, value in total.items() if value} == pytest.approx(
        {name: sum(values) for name, values in expected.items() if sum(values)}
    )
    assert problems_of(run.run, run.recipe) == []


@pytest.mark.slow
def test_by_trend_an_output_is_scored_when_it_is_written(tmp_path: Path) -> None:
    made = experiment(method__recipe__extractor_objective__credit="trend", method__evaluation__every=0)
    run = Played(tmp_path, made, ROUNDS)
    utility: dict[str, float] = {}
    expected: dict[str, float] = {}
    for number in range(1, ROUNDS + 1):
        episodes = {row.episode_id: row for row in run.rows(Episode, "collect", number)}
        best: dict[int, float] = {}
        retrievals = run.rows(Retrieval, "plan", number)
        for row in retrievals:
            group = episodes[row.episode_id].group
            best[group] = max(best.get(group, -2.0), utility.get(row.entry_id, 0.0))
        for output in run.rows(Distillation, "distill", number):
            played = episodes[output.episode_id or ""]
            expected[output.generation_id] = (2 * played.success - 1) - best.get(played.group, 0.0)
        for name, played in episodes.items():
            for row in retrievals:
                if row.episode_id == name:
                    utility[row.entry_id] = 0.95 * utility.get(row.entry_id, 0.0) + 0.05 * (2 * played.success - 1)
        kept = {row.entry_id: row.utility for row in run.rows(CandidateUtility, "credit", number)}
        assert kept == pytest.approx(utility)
    trained = {
        row.generation_id: row.reward
        for number in range(1, ROUNDS + 1)
        for row in run.rows(Sample, "credit", number)
        if row.objective == "cispo"
    }
    last = run.rows(BufferItem, "credit", ROUNDS)
    waiting = {row.generation_id: row.score_sum for row in last if row.status == "waiting"}
    assert trained and not set(trained) & set(waiting) and trained | waiting == pytest.approx(expected)
    assert problems_of(run.run, run.recipe) == []
