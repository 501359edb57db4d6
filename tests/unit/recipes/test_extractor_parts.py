"""Distilling and merging in parts: the same rows and digests whoever runs which part first, and as in one piece."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.engine.execute import Attempt, execute_part, execute_stage, missing_parts
from crl.engine.services import EngineServices
from crl.records import Distillation, Episode, rows_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.unit.recipes.played import Services, experiment, one_by_one

# Three families of two groups: 24 episodes, four in a wave; two families walk side by side.
SETTINGS: dict[str, Any] = {
    "method__families__0__name": "lake{index}",
    "method__families__0__repeat": 3,
    "method__families__0__groups": 2,
    "method__rollout__wave_groups": 1,
    "method__recipe__distill__batch": 2,
    "method__recipe__merge__every": 1,
    "method__evaluation__every": 0,
}
PARTS = {"distill": 6, "merge": 2}


def digests(root: Path, *, first: dict[str, list[int]], **changes: Any) -> tuple[RunDirectory, dict[str, str]]:
    """Round 0 and 1; of the stages in `first` these parts are run before the stage, in this order."""
    made = experiment(**{**SETTINGS, **changes})
    run, services = RunDirectory.create_or_open(made, root), Services(made)
    recipe, found = recipe_of(run.method), {}
    with Lease.acquire(run.path, seconds=600) as lease:
        attempt = Attempt(token=lease.token)
        for number, stage in one_by_one(recipe, run.method, 1):
            options: Any = {"attempt": attempt, "services": services}
            for part in first.get(stage, []):
                assert execute_part(run, recipe, number, stage, part, **options).rows
            if stage in first:
                whole: Any = services
                count, missing = missing_parts(run, recipe, number, stage, whole)
                assert count == PARTS[stage]
                assert missing == [part for part in range(count) if part not in first[stage]]
            found[f"{number}/{stage}"] = execute_stage(run, recipe, number, stage, **options).digest
    return run, found


@pytest.mark.slow
def test_the_parts_make_one_digest_whoever_runs_them_and_the_rows_of_one_piece(tmp_path: Path) -> None:
    run, found = digests(tmp_path / "in order", first={"distill": [], "merge": []})
    _, others = digests(tmp_path / "in disorder", first={"distill": [5, 2, 0], "merge": [1]})
    assert others == found
    episodes = rows_of(Episode, run.read(1, "collect", Episode))
    distilled = rows_of(Distillation, run.read(1, "distill", Distillation))
    assert [row.episode_id for row in distilled] == [row.episode_id for row in episodes] and len(episodes) == 24
    merged = rows_of(Distillation, run.read(1, "merge", Distillation))
    assert {row.family for row in merged} == {"lake0", "lake1", "lake2"}
    # A wave of all groups makes one part of all episodes, with the same batches.
    piece, _ = digests(tmp_path / "one piece", first={}, method__rollout__wave_groups=6)
    for table in ("distillations", "generations", "operations"):
        one, many = (each.manifest(1, "distill").digested.files[f"{table}.parquet"] for each in (piece, run))
        assert one == many, table


@pytest.mark.parametrize(
    "changes",
    [
        {"method__recipe__bank__duplicates": "near"},
        {"method__recipe__merge__scope": "bank"},
    ],
)
def test_what_depends_on_all_before_it_is_one_part(tmp_path: Path, changes: dict[str, Any]) -> None:
    made = experiment(**{**SETTINGS, **changes})
    run = RunDirectory.create_or_open(made, tmp_path)
    recipe, services = recipe_of(run.method), EngineServices(run)
    assert missing_parts(run, recipe, 1, "merge", services) == (1, [0])
