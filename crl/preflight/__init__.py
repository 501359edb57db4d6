"""Checks before any work starts: models, numbers, embedder, environments, prompts, disk.

This process loads no weights; whether models are computed right is measured in another one (`probe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from crl.config import Experiment, FamilyConfig, Method, Runtime, TaskRunnerName
from crl.config.engines import ServerConfig
from crl.config.environments import EnvironmentConfig
from crl.errors import BadInput
from crl.paths import possible_path
from crl.run.data_files import check_data
from crl.run.directory import RunDirectory
from crl.run.experiment_file import EXPERIMENT
from crl.run.find import beside
from crl.run.lease import lease_state

Check = Callable[[], None]
Say = Callable[[str], None]
EMBEDDER = "the embedder of the recipe"
"""The name of its check."""


def check_ready(experiment: Experiment, run_path: Path, rounds: int, *, say: Say | None = None) -> None:
    """Raise the first reason why an experiment cannot run here (BadInput and its kinds, exit code 2).

    `say` is called with a line for a person where models are compared, which takes time.
    """
    possible_path(run_path, "the run directory", where="runtime.runs, --runs or CRL_RUNS")
    from crl.policies.embedders import resolve_embedder
    from crl.policies.sources import resolve_model
    from crl.preflight.estimate import check_disk
    from crl.preflight.numbers import model_checks
    from crl.preflight.probe import Comparison
    from crl.rounds.recipe import recipe_of

    with beside(run_path), Comparison(experiment.method, say=say) as models:
        _raise_first(checks_here(experiment))
        if not (run_path / EXPERIMENT).exists():
            _check_tasks(experiment.method, say)
        recipe_of(experiment.method).check_ready(experiment.method, run_path)
        _raise_first(model_checks(experiment))  # what their configs say, which the recipe's own check has just fetched
        check_disk(experiment, run_path, rounds)
        # From here on weights are downloaded.
        embedder = experiment.method.recipe.embedder()
        if embedder is not None:
            resolve_embedder(embedder.name)
        for role in map(experiment.method.role, experiment.method.owners()):
            resolve_model(role.model)
        _raise_first(model_checks(experiment))
        _raise_first(models.checks())


def check_run(run: RunDirectory, runtime: Runtime, *, say: Say | None = None) -> None:
    """As :func:`check_ready`, of a run that goes on with the method that it keeps; its prompts were checked, and what
    is missing on the disk is said when it is written."""
    from crl.preflight.probe import Comparison

    with beside(run.path), Comparison(run.method, say=say) as models:
        _raise_first(checks_here(_experiment_of(run, runtime)))
        _raise_first(models.checks())


def check_evaluation(run: RunDirectory, runtime: Runtime, method: Method | None = None) -> None:
    """As :func:`check_run`, of a run that is evaluated in this process: no rank, shard or tracker takes part.

    `method` is that of the run with the tasks that are played, where those are not all.
    """
    from crl.preflight.probe import Comparison

    _check_not_sampled_from(run, runtime)
    alone = Runtime(oversubscribe=runtime.oversubscribe, trackers=(), servers=runtime.servers, overlap_engines=1)
    experiment = _experiment_of(run, alone)
    if method is not None:
        experiment = experiment.model_copy(update={"method": method})
    with beside(run.path), Comparison(experiment.method, trains=False) as models:
        _raise_first(checks_here(experiment, trains=False))
        _raise_first(models.checks())


def _check_not_sampled_from(run: RunDirectory, runtime: Runtime) -> None:
    """Raise BadInput where an evaluation would give its weights to a server that a live attempt samples from."""
    state = lease_state(run.path)
    if state is None or not state.live:
        return
    for owner in run.method.owners():
        engine, server = run.method.role(owner).engine, runtime.servers.get(owner, ServerConfig())
        if engine.SERVED and not engine.REMOTE and server.address is not None:
            raise BadInput(
                f"the run is going on (process {state.owner.pid} on {state.owner.host}) and samples from the server "
                f"{server.address}, which would be given the weights of the round that is evaluated",
                expected="a run that has ended, or servers without an address, of which an evaluation starts its own",
                where=f"runtime.servers.{owner}.address",
                next_step="wait for the run to end (`crl status` shows it), or go on with it without the address",
            )


def check_before_warm_starts(experiment: Experiment) -> None:
    """What of :func:`check_ready` can be said before the models `warm:…` are made."""
    _raise_first(checks_here(experiment, warm=False))


def _check_tasks(method: Method, say: Say | None) -> None:
    """Raise BadInput where tasks of a person's files cannot be started; `say` how many were not tried."""
    from crl.envs.items import check_tasks

    for family in method.families:
        for world in family.worlds.values() if family.data_digests is None else ():
            found = check_tasks(world)
            if found and say is not None:
                say(f"family {family.name}: {found}")


def _experiment_of(run: RunDirectory, runtime: Runtime) -> Experiment:
    return Experiment.model_construct(name=run.experiment_name, method=run.method, runtime=runtime)


def _raise_first(found: Iterable[tuple[str, Check]]) -> None:
    for name, check in found:
        try:
            check()
        except BadInput as error:  # whoever checks a model does not know which role asks for it
            where = error.where if (error.where or "").startswith(f"{name}.") else name
            raise type(error)(error.found, expected=error.expected, where=where, next_step=error.next_step) from None


def checks_here(experiment: Experiment, *, warm: bool = True, trains: bool = True) -> list[tuple[str, Check]]:
    """As :func:`checks`, and what this machine must have: to play only, unless the experiment `trains`."""
    from crl.preflight.numbers import machine_checks

    return [*checks(experiment, warm=warm), *machine_checks(experiment, trains=trains)]


def checks(experiment: Experiment, *, warm: bool = True) -> list[tuple[str, Check]]:
    """What has to be there, by the place in the config that asks for it; without `warm` no model `warm:…`."""
    from crl.bank.index import check_faiss
    from crl.checks.own import check_own_suites
    from crl.envs import check_environment
    from crl.policies.embedders import check_embedder
    from crl.policies.sources import check_model, warm_checkpoint
    from crl.preflight.numbers import model_checks
    from crl.preflight.servers import server_checks

    method = experiment.method
    found: list[tuple[str, Check]] = [
        (f"method.roles.{owner}.model", partial(check_model, model))
        for owner, model in ((owner, method.role(owner).model) for owner in method.owners())
        if warm or warm_checkpoint(model) is None
    ]
    found += [*model_checks(experiment), *server_checks(experiment)]
    embedder = method.recipe.embedder()
    if embedder is not None:
        asked = partial(check_embedder, embedder.name, embedder.query_instruction)
        found += [(EMBEDDER, asked), ("the index of the recipe's bank", check_faiss)]
    found.append(("runtime.expectations", partial(check_own_suites, experiment.runtime.expectations)))
    found.append(("runtime.task_runner", partial(check_task_runner, experiment.runtime)))
    found += [("runtime.trackers", choice.check) for choice in experiment.runtime.trackers]
    for family in method.families:
        for first, then in family.worlds.items():
            since = f" from round {first} on" if first else ""
            if family.data_digests is not None:
                found.append((f"the data of family {family.name}{since}", partial(check_data, then)))
            check = partial(check_environment, then.environment, isolate=family.isolate)
            found.append((f"environment of family {family.name}{since}", check))
            found.append((f"the files of family {family.name}{since}", partial(check_files, then.environment)))
            found.append((f"method.families, {family.name}{since}: evaluation_seeds", partial(check_held_out, then)))
    return found


def check_files(environment: EnvironmentConfig) -> None:
    """Raise BadInput where rows that a person brought, and that an environment plays with, break a rule of theirs."""
    from crl.checks.outside import require_sound

    for brought in environment.outside_rows():
        require_sound(brought)


def check_held_out(family: FamilyConfig) -> None:
    """Raise BadInput where a list of held-out tasks is shorter than the seeds that evaluations play."""
    held_out, seeds = family.held_out_seeds, family.evaluation_seeds
    if held_out is not None and seeds.count > held_out:
        raise BadInput(
            f"{seeds.count} seeds of {held_out} held-out tasks from {seeds.start} on",
            expected=f"at most {held_out}: more would play the same tasks twice, and intervals would look too narrow",
            next_step=f"set evaluation_seeds.count to {held_out}"
            if held_out > 0
            else f"set evaluation_seeds.start to {family.environment.held_out_from}",
        )


def check_task_runner(runtime: Runtime) -> None:
    """Raise BadInput where the task runner that is to spread shards is not installed."""
    if runtime.task_runner is TaskRunnerName.dask and runtime.shards > 1 and find_spec("prefect_dask") is None:
        raise BadInput(
            "the Dask task runner is not installed",
            expected="prefect-dask, the project's extra `dask`",
            where="runtime.task_runner",
            next_step="pip install -c constraints.txt -e '.[dask]', or choose engines",
        )
