"""Flow `evaluate`: held-out seeds with the weights of a round, with and without its bank; the record is not changed.

The process of the flow run loads the models itself, as `crl evaluate` does; its parameters are those of the command,
and the rows are kept in the same place, beside the record.
"""

from __future__ import annotations

from logging import INFO, WARNING
from pathlib import Path
from typing import Annotated, Any, Literal

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import Field

from crl.config import SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import MOST_HELD_OUT
from crl.engine.evaluation import evaluate_round as play_round
from crl.engine.evaluation import keep
from crl.engine.targets import last_runtime
from crl.errors import CrlError
from crl.preflight import check_evaluation
from crl.records import Evaluation
from crl.report.success import condition_results, with_averages
from crl.rounds.evaluate import Choice, chosen_method
from crl.run.directory import RunDirectory
from flows.parameters import RunPath, run_from
from flows.present import label, log_precision
from flows.schedule import deployable
from tasks.failures import failed, located, log_error

ARTIFACT_KEY = "evaluation"


class Seeds(SeedRange):
    """Other held-out seeds than those of the experiment."""

    start: int = Field(2_000_000, ge=0, le=LAST_SEED, description="First environment seed; none that was trained on.")
    count: int = Field(32, ge=1, le=MOST_HELD_OUT, description="How many consecutive seeds per task family.")


Round = Annotated[int, Field(ge=0)]
Episodes = Annotated[int, Field(ge=1, le=MOST_HELD_OUT)]
Condition = Literal["with", "without", "random"]


@flow(name="evaluate", persist_result=False, validate_parameters=False)
@deployable
def evaluate(
    run_path: RunPath,
    round: Round | None = None,
    tasks: list[str] | None = None,
    episodes: Episodes | None = None,
    conditions: list[Condition] | None = None,
    seeds: Seeds | None = None,
) -> Any:
    """Evaluate a round of a run. Returns one row per task and condition, then the averages over tasks; the table is
    among the artifacts, and the episodes are kept in `evaluations/` of the run, where `crl table` finds them.

    Args:
        run_path: The name of an experiment, such as `quickstart`, or the path of a run directory on the worker's
            machine.
        round: Round to evaluate; without one, the latest.
        tasks: Names of the tasks (families) to play; without any, all.
        episodes: Held-out seeds of each task, from the start of its split; without a number, all of them.
        conditions: With the bank, without it, or a random policy (round 0 only); without any, all.
        seeds: Other held-out seeds than those of the experiment, in place of `episodes`.
    """
    choice = Choice(
        tasks=tuple(tasks) if tasks else None,
        episodes=episodes,
        seeds=seeds,
        conditions=tuple(conditions) if conditions else None,
    )
    try:
        path = run_from(run_path)
        label(path.name, "evaluate" if round is None else f"evaluate round {round}")
        evaluated: Any = evaluate_round(str(path), round, choice, return_state=True)
        return evaluated.result()
    except CrlError as error:
        return failed(error)


# The record may have grown since: never from Prefect's cache.
@task(name="evaluate", cache_policy=NO_CACHE, persist_result=False)
def evaluate_round(run_path: str, number: int | None, choice: Choice) -> list[dict[str, Any]] | State[Any]:
    """Evaluate, keep the rows and publish the table; an error becomes a failed state that raises it."""
    try:
        run = RunDirectory.open(Path(run_path))
        check_evaluation(run, last_runtime(run.path), chosen_method(run.method, choice))
        log_precision(run.method)
        evaluated = play_round(run, number, choice=choice)
        kept = keep(run, evaluated)
    except CrlError as error:
        located(error, "evaluate")
        log_error(error)
        return failed(error)
    rows = summary(evaluated.rows)
    for row in rows:
        get_run_logger().info(", ".join(f"{name}: {value}" for name, value in row.items()))
    get_run_logger().log(WARNING if kept.path is None else INFO, kept.text)
    _publish(run_path, evaluated.round, rows)
    return rows


def summary(episodes: list[Evaluation]) -> list[dict[str, Any]]:
    """One row per task and condition, then the averages over tasks, as the UI shows them."""
    return [
        {
            "task": result.task,
            "condition": result.condition_words,
            "episodes": result.episodes,
            "won": result.won_words,
            "success": round(result.success.mean, 4),
            "95 % interval": f"{result.success.span} %",
            "score": round(result.score, 4),
            "actions": round(result.actions, 2),
            "tokens read": round(result.tokens_read, 1),
            "tokens written": round(result.tokens_written, 1),
            "invalid actions": round(result.invalid_share, 4),
            "guided": result.guided,
        }
        for result in with_averages(condition_results(episodes))
    ]


def _publish(run_path: str, number: int, rows: list[dict[str, Any]]) -> None:
    try:
        create_table_artifact(
            key=ARTIFACT_KEY, table=rows, description=f"Held-out seeds, round {number} of {Path(run_path).name}"
        )
    except Exception as error:  # the numbers are in the log and in the result
        get_run_logger().warning("the table could not be published: %s", error)
