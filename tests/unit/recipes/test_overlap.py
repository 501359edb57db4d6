"""Rounds that overlap: however stages of two rounds take turns, every digest is the same; staleness is as declared."""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.audit.audit import problems_of, staleness_problems
from crl.config import Method
from crl.errors import BadInput
from crl.records import Distillation, Evaluation, Generation, Retrieval, Sample, Weights
from crl.report.views import query
from crl.rounds.stage import Read, Recipe
from crl.run.files import sha256_bytes
from tests.unit.recipes.played import ROOT, Played, Policy, Services, Trainer, act, experiment, one_by_one

ROUNDS = 4
FEW = {
    "method__families__0__evaluation_seeds__count": 2,
    "method__families__0__groups": 2,
    "method__evaluation__every": ROUNDS,
}
Place = tuple[int, str]


class SteppingTrainer(Trainer):
    """Its checkpoint is a digest of all that it was trained on, so every round has weights of its own."""

    def update(self, samples: Any, objective: Any, **more: Any) -> dict[str, float]:
        return {**super().update(samples, objective, **more), "stepped": 1.0}

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "model").write_text(sha256_bytes(repr(self.batches).encode()))


def played(root: Path, order: Any = one_by_one, **changes: Any) -> Played:
    made = experiment(**{"method__overlap": True, "method__recipe__merge__every": 2, **FEW, **changes})
    services = Services(made)
    services.trainers = {"actor": SteppingTrainer(), "extractor": SteppingTrainer()}
    return Played(root, made, ROUNDS, services, order)


def reads_of(recipe: Recipe, method: Method, rounds: int) -> dict[Place, set[Place]]:
    """What each stage reads, by what the recipe declares."""
    return {
        (number, stage.name): {
            found
            for read in stage.reads
            if (found := recipe.resolve(method, number, read.stage, read.offset)) is not None
        }
        for number in range(rounds + 1)
        for stage in recipe.stages_of(method, number)
    }


def second_track_late(recipe: Recipe, method: Method, rounds: int) -> list[Place]:
    """The second track of each round after the first of the next: as late as the reads allow it."""
    listed = one_by_one(recipe, method, rounds)
    return sorted(listed, key=lambda place: place[0] + 1.5 * recipe.stage(method, *place).second_track)


def at_random(recipe: Recipe, method: Method, rounds: int, *, seed: int) -> Iterable[Place]:
    """Anything next that has what it reads."""
    waiting, drawn = reads_of(recipe, method, rounds), random.Random(seed)
    done: set[Place] = set()
    while waiting:
        place = drawn.choice(sorted(place for place, reads in waiting.items() if reads <= done))
        waiting.pop(place)
        done.add(place)
        yield place


@pytest.fixture(scope="module")
def one_after_the_other(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("one"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        pytest.param(second_track_late, id="late"),
        pytest.param(partial(at_random, seed=3), id="random"),
    ],
)
def test_however_the_tracks_interleave_the_digests_are_the_same(
    one_after_the_other: Played, tmp_path: Path, order: Any
) -> None:
    found = played(tmp_path, order)
    taken = list(order(found.recipe, found.method, ROUNDS))
    assert taken != one_by_one(found.recipe, found.method, ROUNDS), "another order, or this test says nothing"
    assert len(taken) == len(set(taken)) == len(one_after_the_other.digests())
    assert found.digests() == one_after_the_other.digests()


@pytest.mark.slow
def test_a_round_plays_with_what_the_recipe_declares(one_after_the_other: Played) -> None:
    run = one_after_the_other
    weights = {
        (role, number): run.rows(Weights, f"update_{role}", number)[0].weights_digest
        for role in ("actor", "extractor")
        for number in range(1, ROUNDS + 1)
    } | {(row.role, 0): row.weights_digest for row in run.rows(Weights, "initialize", 0)}
    assert len({weights["extractor", number] for number in range(ROUNDS + 1)}) > 2, "there is something to tell apart"
    for number in range(1, ROUNDS + 1):
        before = max(0, number - 1)
        assert {row.bank_round for row in run.rows(Retrieval, "plan", number)} <= {max(0, number - 2)}
        assert {row.weights_digest for row in run.rows(Generation, "collect", number)} == {weights["actor", before]}
        written = run.rows(Generation, "distill", number)
        assert {row.weights_digest for row in written} == {weights["extractor", before]}, "its own track's newest"
    assert run.rows(Retrieval, "plan", ROUNDS), "some round was guided"
    assert run.rows(Evaluation, "evaluate", ROUNDS) and run.rows(Distillation, "merge", 2)


@pytest.mark.parametrize(
    ("stage", "read", "expected"),
    [
        ("plan", "bank", "searches of the bank of round 3, as declared"),
        ("collect", "actor", "token records of the actor of round 2, as declared"),
        ("distill", "extractor", "token records of the extractor of round 2, as declared"),
    ],
)
def test_rows_of_another_round_than_declared_are_a_problem(
    one_after_the_other: Played, stage: str, read: str, expected: str
) -> None:
    """Held against a recipe that declares other rounds: the rows are then as stale as no recipe said."""
    run, recipe = one_after_the_other.run, one_after_the_other.recipe
    assert not problems_of(run, recipe)

    def shifted(each: Read) -> Read:
        other = -1 if stage == "plan" else -2
        return dataclasses.replace(each, offset=other) if each.name == read else each

    stages = [
        dataclasses.replace(each, reads=tuple(map(shifted, each.reads))) if each.name == stage else each
        for each in recipe.stages
    ]
    found = staleness_problems(run, dataclasses.replace(recipe, stages=tuple(stages)))
    assert [(problem.round, problem.stage, problem.expected) for problem in found][-1] == (ROUNDS, stage, expected)


def test_the_query_of_the_documentation_tells_the_ages(one_after_the_other: Played) -> None:
    page = (ROOT / "docs" / "method.md").read_text(encoding="utf-8")
    (sql,) = re.findall(r"```sql\n(.*?)```", page, re.DOTALL)
    _, found = query(one_after_the_other.run.path, sql)
    ages = {(number, what): (youngest, oldest) for number, what, youngest, oldest, _ in found}
    assert ages[ROUNDS, "bank of plan"] == (2, 2)
    assert ages[ROUNDS, "actor of collect"] == (1, 1)
    assert ages[ROUNDS, "extractor of distill"] == (1, 1)


def test_the_actors_update_waits_for_no_stage_of_the_second_track(one_after_the_other: Played) -> None:
    recipe, method = one_after_the_other.recipe, one_after_the_other.method
    reads = reads_of(recipe, method, ROUNDS)
    behind, found = [(ROUNDS, "update_actor")], set()
    while behind:
        place = behind.pop()
        found.add(place)
        behind += [each for each in reads[place] if each not in found]
    late = {(number, stage) for number, stage in found if number and recipe.stage(method, number, stage).second_track}
    assert late and max(number for number, _ in late) == ROUNDS - 2
    assert {row.role for row in one_after_the_other.rows(Sample, "advantages", ROUNDS)} == {"actor"}
    assert {row.role for row in one_after_the_other.rows(Sample, "credit", ROUNDS)} <= {"extractor"}


def test_without_overlap_the_method_is_that_of_before() -> None:
    plain, off = experiment().method, experiment(method__overlap=False).method
    assert plain.digest() == off.digest() and "overlap" not in plain.model_dump(mode="json")
    on = experiment(method__overlap=True).method
    assert on.digest() != plain.digest() and Method.model_validate(on.model_dump(mode="json")) == on


def test_shared_weights_do_not_overlap() -> None:
    with pytest.raises(BadInput, match="share their weights"):
        experiment(method__overlap=True, method__roles__extractor={"weights": "actor"})


def asking(read: str, generator: np.random.Generator) -> str:
    """A guided actor asks before it acts."""
    return "ASK: where?" if "Advice:" in read and "where?" not in read else act(read, generator)


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [True, False])
def test_answers_of_older_weights_than_the_update_begins_with_are_told_apart(tmp_path: Path, overlap: bool) -> None:
    """By the digest of the weights in each token record, which the update does not go by."""
    made = experiment(
        method__overlap=overlap,
        method__rollout__search_and_ask={"uses": 1, "train_answers": True},
        method__prompts__ask={"system": "Answer.", "first": "{goal} {observation} {question} {experience}"},
        method__recipe__extractor_objective__batch=2,
        **FEW,
    )
    services = Services(made)
    services._policies["actor"] = Policy(asking)
    trainer = SteppingTrainer()
    services.trainers = {"actor": SteppingTrainer(), "extractor": trainer}
    run = Played(tmp_path, made, ROUNDS, services)
    older, answers = [], []
    for batch in trainer.batches:
        number = batch[0].round
        before = "initialize" if number == 1 else "update_extractor"
        digest = {row.role: row.weights_digest for row in run.rows(Weights, before, number - 1)}["extractor"]
        records = run.rows(Generation, "collect", number)
        answers.append({each.sample_id for each in batch if each.source == f"{number:04d}/collect"})
        sampled = {row.generation_id for row in records if row.role == "extractor" and row.weights_digest != digest}
        older.append({each.sample_id for each in batch if each.generation_id in sampled})
    assert any(answers), "some answers are trained in their own round"
    assert any(older) is overlap
    told = [
        {each.sample_id for each in batch if each.sample_id in stale}
        for batch, stale in zip(trainer.batches, trainer.stale, strict=True)
    ]
    assert all(differs <= found for differs, found in zip(older, told, strict=True))
    # What counts is the round of the weights: that an update took no step in between makes no answer fresh.
    assert told == (answers if overlap else [set()] * len(answers))
