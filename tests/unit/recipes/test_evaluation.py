"""What guides an evaluation, and what its success is measured against."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.bank.segments import load_texts
from crl.envs import make_environment
from crl.policies.embedders import LexicalEmbedder
from crl.protocols import FreeText, Start, Step
from crl.records import Evaluation, RetrievalCount
from crl.rounds.evaluate import RANDOM_PLAYS
from crl.rounds.recipe import recorded_bank
from tests.unit.recipes.played import Played, Policy, Services, experiment

ROUNDS = 3
SMALL_BANK = {
    "method__recipe__retrieval__rank_score": "fraction", "method__recipe__retrieval__count_weight": 0.4,
    "method__recipe__retrieval__candidates": 16, "method__recipe__bank__duplicates": "reject",
}  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"), experiment(**SMALL_BANK), ROUNDS)


def nearest(played: Played, number: int) -> dict[int, str]:
    """By held-out seed: the entry whose text has the largest cosine with the task, reckoned here."""
    bank = recorded_bank(played.run, played.recipe, number)
    texts = load_texts(played.run.path, bank.table)
    entries = list(zip(bank.table["entry_id"].to_pylist(), bank.table["content_digest"].to_pylist(), strict=True))
    embedder = LexicalEmbedder()
    vectors = embedder.embed([texts[digest] for _, digest in entries])
    family = played.method.families[0]
    environment = make_environment(family)
    seeds = range(family.evaluation_seeds.start, family.evaluation_seeds.start + family.evaluation_seeds.count)
    found = {}
    for seed, start in zip(seeds, environment.reset_many(list(seeds)), strict=True):
        [query] = embedder.embed([f"{start.goal}\n{start.observation}"])
        found[seed] = entries[int(np.argmax(vectors @ query))][0]
    return found


def test_evaluation_takes_the_most_relevant_entry_however_often_training_used_it(played: Played) -> None:
    counted = {row.entry_id: row.count for row in played.rows(RetrievalCount, "plan", ROUNDS)}
    expected = nearest(played, ROUNDS)
    shown = {
        row.environment_seed: next(iter(row.entry_ids), None)
        for row in played.rows(Evaluation, "evaluate", ROUNDS)
        if row.condition == "with_bank"
    }
    assert shown == expected
    assert any(counted.get(entry_id or "", 0) for entry_id in shown.values()), "training used it, and it is still shown"


@pytest.mark.slow
def test_the_old_way_is_an_option(played: Played, tmp_path: Path) -> None:
    counting = {
        **SMALL_BANK,
        "method__recipe__retrieval__count_weight": 10.0,
        "method__recipe__retrieval__diversify_evaluation": True,
    }
    old = Played(tmp_path, experiment(**counting), ROUNDS)
    counted = {row.entry_id: row.count for row in old.rows(RetrievalCount, "plan", ROUNDS)}
    rows = [row for row in old.rows(Evaluation, "evaluate", ROUNDS) if row.condition == "with_bank"]
    assert rows and {counted[next(iter(row.entry_ids), "")] for row in rows} == {min(counted.values())}, (
        "the least used is shown"
    )
    assert {row.environment_seed: row.entry_ids[0] for row in rows} != nearest(old, ROUNDS)


def test_the_random_policy_plays_every_held_out_task_in_round_0(played: Played) -> None:
    rows = [row for row in played.rows(Evaluation, "evaluate", 0) if row.condition == "random"]
    family = played.method.families[0]
    assert len(rows) == RANDOM_PLAYS * family.evaluation_seeds.count
    assert len({row.evaluation_id for row in rows}) == len(rows)
    assert not any(row.guided or row.invalid_actions for row in rows)
    assert all(row.condition != "random" for row in played.rows(Evaluation, "evaluate", 1))
    environment, random = make_environment(family), np.random.default_rng(7)
    wins = []
    for seed in {row.environment_seed for row in rows}:
        for _ in range(200):
            [start] = environment.reset_many([seed])
            legal, done = start.actions, False
            while not done:
                step = environment.step_many({0: str(random.choice(legal))})[0]
                legal, done = step.actions, step.done
            wins.append(step.success)
    share, spread = np.mean(wins), np.sqrt(np.mean(wins) * (1 - np.mean(wins)) / len(rows))
    assert abs(np.mean([row.success for row in rows]) - share) < 4 * spread


FREE = FreeText("a direction")


class Quiet:
    """An environment that reads text: at once, or after the first turn."""

    def __init__(self, inner: Any, *, at_once: bool) -> None:
        self._inner, self._at_once = inner, at_once

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        starts = self._inner.reset_many(seeds)
        return [dataclasses.replace(start, actions=FREE) for start in starts] if self._at_once else starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = self._inner.step_many(actions)
        return {slot: dataclasses.replace(step, actions=FREE) for slot, step in steps.items()}


@pytest.mark.parametrize("at_once", [True, False])
def test_the_random_policy_plays_only_what_names_its_actions(tmp_path: Path, at_once: bool) -> None:
    made = experiment()
    services = Services(made)
    quiet = {
        family.name: Quiet(services.environment(family.name, 0), at_once=at_once) for family in made.method.families
    }
    services.environment = lambda family, round_number: quiet[family]  # type: ignore[method-assign]
    played = Played(tmp_path, made, 0, services)
    conditions: dict[str, list[Evaluation]] = {"random": [], "without_bank": []}
    for row in played.rows(Evaluation, "evaluate", 0):
        conditions[row.condition].append(row)
    notes = played.run.manifest(0, "evaluate").provenance
    assert len(conditions["without_bank"]) == made.method.families[0].evaluation_seeds.count
    if at_once:
        assert not conditions["random"] and "names no action" in notes["random lake"]
        return
    assert "random lake" not in notes
    assert {tuple(row.actions[1:]) for row in conditions["random"]} == {(), ("", "", "")}, "four turns, one with a move"
    assert all(row.invalid_actions == row.turns - 1 for row in conditions["random"])


def test_the_random_policy_stops_where_nothing_else_ends_an_episode(tmp_path: Path) -> None:
    walk = {"name": "walk", "environment": {"kind": "tests.unit.recipes.endless:EndlessConfig"}}
    made = experiment(method__families=[walk | {"groups": 2, "evaluation_seeds": {"start": 1_000_000, "count": 2}}])
    services = Services(made)
    services._policies["actor"] = Policy(lambda read, random: "right")
    played = Played(tmp_path, made, 0, services)
    rows = [row for row in played.rows(Evaluation, "evaluate", 0) if row.condition == "random"]
    most = made.method.role("actor").context // 8
    assert len(rows) == RANDOM_PLAYS * 2 and max(row.turns for row in rows) == most
    assert {row.stop_reason for row in rows} == {"success", "turn_limit"}
    assert all((row.stop_reason == "turn_limit") == (row.turns == most and not row.success) for row in rows)
