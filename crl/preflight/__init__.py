"""Checks before any work starts: models, numbers, embedder, environments, prompts, disk. No weights are loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from crl.config import Experiment, Runtime, TaskRunnerName
from crl.errors import BadInput
from crl.paths import possible_path

Check = Callable[[], None]


def check_ready(experiment: Experiment, run_path: Path, rounds: int) -> None:
    """Raise the first reason why an experiment cannot run here (BadInput and its kinds, exit code 2)."""
    possible_path(run_path, "the run directory", where="runtime.runs, --runs or CRL_RUNS")
    from crl.policies.embedder_sources import resolve_embedder
    from crl.preflight.estimate import check_disk
    from crl.preflight.numbers import machine_checks, model_checks
    from crl.recipes import recipe_of

    _raise_first([*checks(experiment), *machine_checks(experiment)])
    embedder = experiment.method.recipe.embedder()
    if embedder is not None:
        resolve_embedder(embedder.name)
    recipe_of(experiment.method).check_ready(experiment.method, run_path)
    _raise_first(model_checks(experiment))  # of models that the recipe's own check has just fetched
    check_disk(experiment, run_path, rounds)


def _raise_first(found: Iterable[tuple[str, Check]]) -> None:
    for name, check in found:
        try:
            check()
        except BadInput as error:  # whoever checks a model does not know which role asks for it
            where = error.where if (error.where or "").startswith(f"{name}.") else name
            raise type(error)(error.found, expected=error.expected, where=where, next_step=error.next_step) from None


def checks(experiment: Experiment) -> list[tuple[str, Check]]:
    """What has to be there, by the place in the config that asks for it."""
    from crl.checks.own import check_own_suites
    from crl.envs import check_environment
    from crl.policies.embedder_sources import check_embedder
    from crl.policies.sources import check_model
    from crl.preflight.numbers import model_checks

    method = experiment.method
    found: list[tuple[str, Check]] = [
        (f"method.roles.{owner}.model", partial(check_model, method.role(owner).model)) for owner in method.owners()
    ]
    found += model_checks(experiment)
    embedder = method.recipe.embedder()
    if embedder is not None:
        asked = partial(check_embedder, embedder.name, embedder.query_instruction)
        found.append(("the embedder of the recipe", asked))
    found.append(("runtime.expectations", partial(check_own_suites, experiment.runtime.expectations)))
    found.append(("runtime.task_runner", partial(check_task_runner, experiment.runtime)))
    found += [("runtime.trackers", choice.check) for choice in experiment.runtime.trackers]
    for family in method.families:
        found.append((f"environment of family {family.name}", partial(check_environment, family.environment)))
    return found


def check_task_runner(runtime: Runtime) -> None:
    """Raise BadInput where the task runner that is to spread shards is not installed."""
    if runtime.task_runner is TaskRunnerName.dask and runtime.shards > 1 and find_spec("prefect_dask") is None:
        raise BadInput(
            "the Dask task runner is not installed",
            expected="prefect-dask, the project's extra `dask`",
            where="runtime.task_runner",
            next_step="pip install 'complementary-rl[dask]', or choose engines",
        )
