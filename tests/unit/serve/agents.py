"""Runs whose agents leave: two tasks, with what a held-out evaluation shows in each game."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from crl.config import Experiment
from crl.policies.embedders import embedder_digest
from crl.policies.sources import resolve_model
from crl.records import Evaluation
from crl.rounds.evaluate import evaluate_again
from tests.unit.recipes.played import Played, Policy, Services, Session, act, experiment

ROUND = 2
SUPPRESS = {"min_uses": 2, "max_effect": 1.0, "standard_errors": 0.0}
CHANGES: dict[str, dict[str, Any]] = {
    "diversified": {"method__recipe__retrieval__diversify_evaluation": True},
    "suppressed": {
        "method__rollout__placement": "system", "method__recipe__retrieval__scope": "bank",
        "method__recipe__suppress": SUPPRESS,
    },
}  # fmt: skip


class Shown(Policy):
    """An actor that remembers the first prompt of each game."""

    def __init__(self) -> None:
        super().__init__(act)
        self.prompts: list[list[int]] = []

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        self.prompts += map(list, prompts)
        return super().open(prompts, seeds, limit)


class TrueDigests(Services):
    """Their models are the true ones: an agent compares digests."""

    def model_digest(self, role: str) -> str:
        return embedder_digest("lexical") if role == "embedder" else resolve_model("tiny").digest


def two_lakes(name: str) -> Experiment:
    """Two tasks, the second with a prompt of its own."""
    few = {"method__families__0__groups": 2, "method__families__0__evaluation_seeds__count": 3}
    made = experiment(method__recipe__retrieval__top_k=2, **few, **CHANGES[name])
    lake = made.method.families[0]
    prompt = lake.model_validate(lake.model_dump() | {"prompts": {"actor": made.method.prompts["actor"].model_dump()}})
    pond = prompt.model_copy(update={"name": "pond"})
    pond.prompts["actor"] = pond.prompts["actor"].model_copy(update={"system": "You skate on a pond."})  # type: ignore[index]
    method = made.method.model_copy(update={"families": [lake, pond]})
    return made.model_copy(update={"method": method})


def played(root: Path, name: str) -> Played:
    """Some rounds of it, with one of `CHANGES`."""
    made = two_lakes(name)
    return Played(root, made, ROUND, TrueDigests(made))


def held_out(run: Played, number: int) -> list[tuple[Evaluation, list[int]]]:
    """The held-out games of a round as the record has them, each with the ids of its first prompt."""
    services, shown = TrueDigests(Experiment(name="again", method=run.method)), Shown()
    services._policies["actor"] = shown
    rows = evaluate_again(run.run, run.method, run.recipe, number, services).rows
    rows = [row for row in rows if row.condition != "random"]
    assert rows == [row for row in run.rows(Evaluation, "evaluate", number) if row.condition != "random"]
    return list(zip(rows, shown.prompts, strict=True))
