"""Flow `evaluate`: held-out seeds with the weights of a round, with and without its bank; the run is not changed.

The process of the flow run loads the models itself, as `crl evaluate` does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import Field

from crl.config import SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import MOST_HELD_OUT
from crl.engine.evaluation import evaluate_round as rows_of_round
from crl.engine.targets import last_runtime
from crl.errors import CrlError
from crl.preflight import check_evaluation
from crl.records import Evaluation
from crl.report.evaluation import results
from crl.run.directory import RunDirectory
from flows.parameters import RunPath, run_from
from flows.present import label
from flows.schedule import superseded
from tasks.failures import failed, log_error, placed

ARTIFACT_KEY = "evaluation"


class Seeds(SeedRange):
    """Other held-out seeds than those of the experiment."""

    start: int = Field(2_000_000, ge=0, le=LAST_SEED, description="First environment seed; none that was trained on.")
    count: int = Field(32, ge=1, le=MOST_HELD_OUT, description="How many consecutive seeds per task family.")


Round = Annotated[int, Field(ge=0)]


@flow(name="evaluate", persist_result=False)
def evaluate(run_path: RunPath, round: Round | None = None, seeds: Seeds | None = None) -> Any:
    """Evaluate a round of a run. Returns one row per task family and arm; the table is among the artifacts.

    Args:
        run_path: The name of an experiment, such as `quickstart`, or the path of a run directory on the worker's
            machine.
        round: Round to evaluate; without one, the latest.
        seeds: Other held-out seeds than those of the experiment.
    """
    if (state := superseded()) is not None:
        return state
    try:
        path = run_from(run_path)
        label(path.name, "evaluate" if round is None else f"evaluate round {round}")
        evaluated: Any = evaluate_round(str(path), round, seeds, return_state=True)
        return evaluated.result()
    except CrlError as error:
        return failed(error)


# The record may have grown since: never from Prefect's cache.
@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def evaluate_round(run_path: str, number: int | None, seeds: Seeds | None) -> list[dict[str, Any]] | State[Any]:
    """Evaluate and publish the table; an error becomes a failed state that raises it."""
    try:
        run = RunDirectory.open(Path(run_path))
        check_evaluation(run, last_runtime(run.path))
        number, episodes = rows_of_round(run, number, seeds=seeds)
    except CrlError as error:
        placed(error, "evaluate")
        log_error(error)
        return failed(error)
    rows = summary(episodes)
    for row in rows:
        get_run_logger().info(", ".join(f"{name}: {value}" for name, value in row.items()))
    _publish(run_path, number, rows)
    return rows


def summary(episodes: list[Evaluation]) -> list[dict[str, Any]]:
    """One row per task family and arm, as the UI shows it."""
    return [
        {
            "family": result.family,
            "arm": result.arm,
            "episodes": result.won.episodes,
            "won": str(result.won),
            "success": round(result.won.value or 0.0, 4),
            "95 % interval": f"{result.won.span} %",
            "actions per game": round(result.actions_per_game, 2),
            "invalid actions": round(result.invalid_share, 4),
            "guided": result.guided,
        }
        for result in results(episodes)
    ]


def _publish(run_path: str, number: int, rows: list[dict[str, Any]]) -> None:
    from prefect.artifacts import create_table_artifact

    try:
        create_table_artifact(
            key=ARTIFACT_KEY, table=rows, description=f"Held-out seeds, round {number} of {Path(run_path).name}"
        )
    except Exception as error:  # the numbers are in the log and in the result
        get_run_logger().warning("the table could not be published: %s", error)
