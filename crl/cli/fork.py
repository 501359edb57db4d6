"""`crl fork`: a new run that goes on from a round of another one, with the same method or a changed one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crl.cli.shared import RunArgument, parse_overrides, say, shown
from crl.errors import BadInput
from crl.paths import short
from crl.run.find import find_run

if TYPE_CHECKING:
    from crl.config import Experiment, Runtime
    from crl.run.directory import RunDirectory


def fork(
    run: RunArgument,
    round: Annotated[int, typer.Option(min=0, max=1_000_000, help="The finished round to continue from.")],
    name: Annotated[str, typer.Option(metavar="NEW", help="Name of the new experiment.")],
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: --set method.recipe.merge.every=2"),
    ] = None,
    recipe: Annotated[
        str | None, typer.Option(metavar="KIND", help="Another recipe; mechanisms that both have are kept.")
    ] = None,
    keep_rollouts: Annotated[
        bool,
        typer.Option("--keep-rollouts", help="Reuse the parent's rollouts of the next round; run what follows."),
    ] = False,
) -> None:
    """Continue from a round of a run, as a new run. It begins with that round's weights, optimizer state and bank."""
    from crl.engine.targets import fork_run, last_runtime
    from crl.preflight import check_ready
    from crl.rounds.fork import check_fork
    from crl.run.directory import RunDirectory

    path = find_run(run)
    parent, runtime = RunDirectory.open(path), last_runtime(path)
    experiment = changed_experiment(parent, runtime, name, set or [], recipe)
    root = path.absolute().parent
    check_fork(parent, round, experiment, root, keep_rollouts=keep_rollouts)  # refused before any model is looked for
    if experiment.method != parent.method:
        check_ready(experiment, root / name, 1)

    # Shards, limits and retention are the parent's.
    made = fork_run(parent, round, experiment, root, keep_rollouts=keep_rollouts)
    _say(parent, made, round)


def changed_experiment(
    parent: RunDirectory, runtime: Runtime, name: str, pairs: list[str], recipe: str | None
) -> Experiment:
    """The parent's experiment under another name, with other settings of the method. Raises BadInput."""
    from crl.config import RECIPES
    from crl.config.load import parse_experiment
    from crl.run.data_files import with_digests_of

    overrides = parse_overrides(pairs)
    for key in overrides:
        if key != "method" and not key.startswith("method."):
            raise BadInput(
                f"--set {short(key)} is not part of the method",
                expected="keys of `method`: what changes no number may change at any time, without a fork",
                where="--set",
                next_step="give it to `crl train`; a fork keeps the last runtime of its parent",
            )
    method = parent.method.model_dump(mode="json")
    if recipe is not None:
        known = RECIPES.load(recipe).model_fields  # what both have in common stays, the rest is as by default
        kept = {key: value for key, value in method["recipe"].items() if key in known}
        method["recipe"] = {**kept, "kind": recipe}
    data = {"name": name, "method": method, "runtime": runtime.model_dump(mode="json")}
    made = parse_experiment(
        data, overrides, base=Path("conf"), where=f"the method of {parent.experiment_name}, changed,"
    )
    before = {family.name: family for family in parent.method.families}
    families = [with_digests_of(each, before.get(each.name, each)) for each in made.method.families]
    return made.model_copy(update={"method": made.method.model_copy(update={"families": families})})


def _say(parent: RunDirectory, made: RunDirectory, round_number: int) -> None:
    from crl.report.state import changes_between

    where = shown(made.path)
    say(f"{where} continues from round {round_number} of {shown(parent.path)}")
    changes = changes_between(*(each.method.model_dump(mode="json") for each in (parent, made)))
    for change in changes:
        say(f"  {change}")
    if not changes:
        say("  with the same method: its rounds will have the digests of the parent's")
    last = made.lineage.ancestors[-1]
    if last.kept:
        names = ", ".join(key.partition("/")[2] for key in last.kept)
        say(f"  with the parent's {names} of round {round_number + 1}; what follows them is still to run")
    say(f"next:\n  crl resume {where}{'' if last.kept else ' --rounds 3'}")
