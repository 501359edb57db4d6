"""Flow `evaluate`: held-out seeds with the weights of a round, with and without its bank; the record is not changed.

The process of the flow run loads the models itself, as `crl evaluate` does; its parameters are those of the command,
and the rows are kept in the same place, beside the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from logging import INFO, WARNING
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from prefect import flow, task
from prefect.artifacts import create_table_artifact
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.logging import get_run_logger
from pydantic import Field, ValidationError, WithJsonSchema

from crl.config import SeedRange
from crl.config.base import LAST_SEED
from crl.config.environments import MOST_HELD_OUT
from crl.engine.evaluation import evaluate_round as play_round
from crl.engine.evaluation import keep
from crl.engine.targets import last_runtime
from crl.errors import BadInput, CrlError
from crl.paths import short
from crl.preflight import check_evaluation
from crl.records import Evaluation
from crl.report.success import condition_results, with_averages
from crl.rounds.evaluate import Choice, chosen_method
from crl.run.directory import RunDirectory
from flows.parameters import EVERYTHING, NOTHING, RunPath, run_from
from flows.present import label, log_precision
from flows.schedule import deployable
from tasks.failures import failed, located, log_error

ARTIFACT_KEY = "evaluation"


LATEST = "latest"
_SEEDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "start": {
            "type": "integer", "minimum": 0, "maximum": LAST_SEED, "title": "start", "position": 0,
            "description": "First environment seed, such as 2000000; none that was trained on.",
        },
        "count": {
            "type": "integer", "minimum": 1, "maximum": MOST_HELD_OUT, "title": "count", "position": 1,
            "description": "How many consecutive seeds per task family.",
        },
    },
    "additionalProperties": False,
}  # fmt: skip
Condition = Literal["with", "without", "random"]
if TYPE_CHECKING:
    Round = int | str
    Seeds = dict[str, int]
else:
    Round = Annotated[int | str, WithJsonSchema({"type": "string", "pattern": f"^({LATEST}|[0-9]+)$"})]
    Seeds = Annotated[dict[str, int], WithJsonSchema(_SEEDS)]
Episodes = Annotated[int, Field(ge=0, le=MOST_HELD_OUT)]


@flow(name="evaluate", persist_result=False, validate_parameters=False)
@deployable
def evaluate(
    run_path: RunPath,
    round: Round = LATEST,
    tasks: list[str] = EVERYTHING,
    episodes: Episodes = 0,
    conditions: list[Condition] = EVERYTHING,
    seeds: Seeds = NOTHING,
) -> Any:
    """Evaluate a round of a run. Returns one row per task and condition, then the averages over tasks; the table is
    among the artifacts, and the episodes are kept in `evaluations/` of the run, where `crl table` finds them.

    Args:
        run_path: A run of the worker's machine: the name of its experiment, or the path of its directory.
        round: Number of the round to evaluate, or `latest`.
        tasks: Names of the tasks (families) to play; without any, all.
        episodes: Held-out seeds of each task, from the start of its split; 0: all of them.
        conditions: With the bank, without it, or a random policy (round 0 only); without any, all.
        seeds: Other held-out seeds than those of the experiment, in place of `episodes`.
    """
    try:
        choice = Choice(
            tasks=tuple(tasks) or None,
            episodes=episodes or None,
            seeds=_seeds(seeds),
            conditions=tuple(conditions) or None,
        )
        path, number = run_from(run_path), _number(round)
        label(path.name, "evaluate" if number is None else f"evaluate round {number}")
        evaluated: Any = evaluate_round(str(path), number, choice, return_state=True)
        return evaluated.result()
    except CrlError as error:
        return failed(error)


def _number(round: int | str) -> int | None:
    """The number of a round; None for the latest. Raises BadInput."""
    if round == LATEST:
        return None
    if not str(round).isdecimal():
        raise BadInput(f"round: found {short(str(round))}", expected=f"the number of a round, or {LATEST}")
    return int(round)


def _seeds(given: Mapping[str, int]) -> SeedRange | None:
    """The seeds that were filled in; None where nothing was. Raises BadInput."""
    known = {name: value for name, value in given.items() if value is not None}
    if not known:
        return None
    try:
        return SeedRange(start=known["start"], count=known["count"])
    except (KeyError, ValidationError):
        raise BadInput(f"seeds: found {known}", expected="both `start` and `count`, or neither") from None


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
            **{f"pass@{k}": value.words for k, value in result.pass_at.items()},
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
