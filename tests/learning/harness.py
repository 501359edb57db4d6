"""Runs of real recipes in this process: the stages of training, executed by `execute_stage` on a run directory."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crl.config import Experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.records import rows_of
from crl.records.base import R
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.lease import Lease


def train(experiment: Experiment, root: Path, rounds: int) -> RunDirectory:
    """Round 0 and `rounds` further ones: every stage of the recipe."""
    run = RunDirectory.create_or_open(experiment, root)
    recipe = recipe_of(run.method)
    services = EngineServices(run)
    try:
        with Lease.acquire(run.path, seconds=600) as lease:
            for round_number in range(rounds + 1):
                for stage in recipe.stages_of(run.method, round_number):
                    services.begin(round_number, stage.name, None)
                    execute_stage(
                        run, recipe, round_number, stage.name, attempt=Attempt(token=lease.token), services=services
                    )
    finally:
        services.close()
    return run


def rows(run: RunDirectory, row_type: type[R], stage: str, rounds: Sequence[int]) -> list[R]:
    """Rows of a stage over several rounds, in order."""
    return [row for number in rounds for row in rows_of(row_type, run.read(number, stage, row_type))]


def share(flags: Sequence[bool]) -> float:
    """How many of the flags are true."""
    return sum(flags) / len(flags)
