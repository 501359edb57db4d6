"""`crl env …`: the environments that there are, whether one keeps its promises, and a person who plays one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import console, parse_overrides, print_listing, say_json
from crl.errors import BadInput
from crl.paths import quoted

if TYPE_CHECKING:
    from crl.config import EnvironmentConfig, FamilyConfig

app = typer.Typer(help="Environments: list, check and play them.", no_args_is_help=True)

NameArgument = Annotated[
    str,
    typer.Argument(metavar="NAME", help="A kind, module:Class, or an experiment's YAML file (see --family)."),
]
FamilyOption = Annotated[
    str | None, typer.Option(metavar="FAMILY", help="Which task family of the YAML file; default the first.")
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the environment; may be repeated."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@app.command("list")
def list_environments(json: JsonOption = False) -> None:
    """List environments. Built-in ones and those of installed packages, and whether each can be played here."""
    from crl.envs.listing import environments

    found = environments()
    if json:
        say_json([each.as_data() for each in found], indent=2)
        return
    from crl.report.terminal import Listing

    rows = [(each.kind, each.about, each.playable) for each in found]
    print_listing(Listing(("kind", "what it is", "here"), rows, words={"what it is", "here"}))


@app.command("check")
def check_environment(
    name: NameArgument,
    family: FamilyOption = None,
    set: SetOption = None,
    episodes: Annotated[int, typer.Option(min=2, max=100_000, help="Episodes that are played twice.")] = 100,
    longest: Annotated[int, typer.Option(min=1, max=100_000, help="Most turns of an episode to play.")] = 200,
    time_limit: Annotated[float, typer.Option(min=0.1, max=86_400, help="Seconds that one check may take.")] = 300,
    json: JsonOption = False,
) -> None:
    """Check what an environment promises. Exit code 2 if a check fails.

    Random policies play it in separate processes: a hang or a crash is a finding. Where its episodes are programs that
    run themselves, the built-in tiny model is their actor."""
    from crl.cli.program_check import check_programs
    from crl.envs.check.run import Plan, check, require_passed

    chosen = family_of(name, family, set or [])
    plan = Plan(
        chosen.environment, chosen.train_seeds, chosen.evaluation_seeds, episodes=episodes, longest=longest,
        time_limit_seconds=time_limit,
    )  # fmt: skip
    errors = console(stderr=True)
    with errors.status("starting") as status:
        programs = chosen.environment.runs_programs
        found = check_programs(chosen, time_limit) if programs else check(plan, lambda each: status.update(each))
    if json:
        say_json([{"check": each.check, "outcome": each.outcome, "message": each.message} for each in found], indent=2)
    else:
        from rich.text import Text

        from crl.report.terminal import Listing

        styles = {"ok": "green", "failed": "bold red", "note": ""}
        rows = [(each.check, Text(each.outcome, styles[each.outcome]), each.message) for each in found]
        print_listing(Listing(("check", "result", "found"), rows, words={"found"}))
    require_passed(found, name)


@app.command("solvable")
def solvable(
    experiment: Annotated[Path, typer.Argument(metavar="EXPERIMENT", help="A YAML file: whose weights, which tasks.")],
    to: Annotated[Path, typer.Option("--to", metavar="FILE", help="Where the list is written; a new YAML file.")],
    family: FamilyOption = None,
    tries: Annotated[int, typer.Option(min=1, max=10_000, help="How often each task is played.")] = 16,
    seeds: Annotated[int, typer.Option(min=1, max=100_000, help="Training seeds to try, from the first one on.")] = 200,
    above: Annotated[float, typer.Option(min=0, max=1, help="Tasks solved in a larger share of tries,")] = 0.0,
    below: Annotated[float, typer.Option(min=0, max=1, help="and in at most this one.")] = 0.8,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A key of the experiment; may be repeated."),
    ] = None,
) -> None:
    """List the tasks that the present weights solve sometimes.

    Each is played as in training, without a bank. Name the file in a family's `train_tasks`: training draws only
    from them. The paper trains on SWE-Bench tasks that its base model solves in (0, 80 %] of 16 tries."""
    import yaml

    from crl.cli.shared import load, say
    from crl.engine.services import prepare_environment
    from crl.engine.solvable import try_tasks
    from crl.preflight import checks_here
    from crl.run.files import require_writable, write_once

    loaded = load(experiment, set or [], None)
    chosen = next((each for each in loaded.method.families if family in (None, each.name)), None)
    if chosen is None:
        names = ", ".join(each.name for each in loaded.method.families)
        raise BadInput(f"{experiment} has no task family {family!r}", expected=f"one of {names}", where="--family")
    if to.exists() or not to.absolute().parent.is_dir():
        found = "is there already" if to.exists() else "is in a folder that does not exist"
        raise BadInput(f"--to {quoted(to)} {found}", expected="the name of a new file")
    if above >= below:
        raise BadInput(f"--above {above:g} is not below --below {below:g}", expected="0 <= above < below <= 1")
    require_writable(to.absolute().parent, f"--to {to}")  # before minutes of play
    os.environ.update(prepare_environment(loaded.method.threads))  # before a check imports torch
    for _, check in checks_here(loaded, trains=False):
        check()
    with console(stderr=True).status("starting") as status:
        tried = try_tasks(
            loaded, chosen, tries=tries, seeds=seeds,
            progress=lambda metrics: status.update(f"{metrics['done']} of {metrics['total']} tries"),
        )  # fmt: skip
    kept = [each for each in tried if each.share is not None and above < each.share <= below]
    never, always = sum(each.won == 0 and each.tries > 0 for each in tried), sum(each.share == 1 for each in tried)
    broken = sum(each.broken > 0 for each in tried)
    said = f"{len(kept)} of {len(tried)} tasks are solved in more than {above:g} and at most {below:g} of {tries} tries"
    say(f"{said}; {never} never, {always} always" + (f"; {broken} broke" if broken else ""))
    if not kept:
        raise BadInput(
            f"no task of family {chosen.name} is solved that often", expected="at least one",
            next_step="try more seeds or tries, a warm start, or another model",
        )  # fmt: skip
    listed = yaml.safe_dump({
        "family": chosen.name, "train_tasks": [each.seed for each in kept],
        "solved": {each.seed: round(each.share or 0.0, 4) for each in kept},
    }, sort_keys=False, default_flow_style=None)  # fmt: skip
    write_once(to, f"# {said}, by crl env solvable\n{listed}".encode())
    say(f"written to {to}; name it in the family: train_tasks: {to.name}")


@app.command("play")
def play_environment(
    name: NameArgument,
    family: FamilyOption = None,
    set: SetOption = None,
    seed: Annotated[int | None, typer.Option(min=0, help="First seed; default the first of training.")] = None,
    prompt: Annotated[
        str | None,
        typer.Option(
            metavar="PROMPTS", help="Show what the actor reads: a file of prompts, or a name of conf/prompts."
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the games as demonstrations for a warm start.")
    ] = None,
) -> None:
    """Play an environment yourself. Each line is one answer; Ctrl-D quits.

    Games kept with --record are demonstrations: name the file in an experiment's `warm_start.recorded`."""
    from crl.cli.playing import play

    chosen = family_of(name, family, set or [])
    if chosen.environment.runs_programs:
        raise BadInput(
            f"an episode of {chosen.environment.kind} is a program that calls the model: nobody can type actions",
            expected="an environment that is played step by step",
            where=name,
            next_step="let the tiny model play it: crl env check",
        )
    play(chosen, first_seed=chosen.train_seeds.start if seed is None else seed, prompts=prompt, record=record)


def family_of(name: str, family: str | None, pairs: list[str]) -> FamilyConfig:
    """The task family that is meant: of an experiment's file, or one of an environment alone with the usual seeds.

    Raises BadInput for what cannot be imported, for settings that are none, and for a family that there is not.
    """
    from crl.config import FamilyConfig
    from crl.config.load import load_experiment
    from crl.config.yaml_text import read_value

    values: dict[str, Any] = {key: read_value(value) for key, value in parse_overrides(pairs).items()}
    if name.endswith((".yaml", ".yml")):
        families = load_experiment(name).method.families
        chosen = next((each for each in families if family in (None, each.name)), None)
        if chosen is None:
            names = ", ".join(each.name for each in families)
            raise BadInput(f"{name} has no task family {family!r}", expected=f"one of {names}", where="--family")
        environment = environment_of({**chosen.environment.model_dump(mode="json"), **values})
        return FamilyConfig.model_validate({**chosen.model_dump(mode="json"), "environment": environment})
    if family is not None:
        raise BadInput("--family is for the YAML file of an experiment", where="--family", next_step="leave it out")
    data: dict[str, Any] = {"name": "env", "environment": environment_of({"kind": name, **values})}
    if (first := data["environment"].held_out_from) is not None:
        data["train_seeds"] = {"start": 0, "count": min(100_000, first)}
        data["evaluation_seeds"] = {"start": first, "count": 100}
    return FamilyConfig.model_validate(data)


def environment_of(data: dict[str, Any]) -> EnvironmentConfig:
    """The settings of an environment. Raises BadInput for what cannot be imported, and for settings that are none."""
    from functools import partial

    from pydantic import ValidationError

    from crl.config import ENVIRONMENTS
    from crl.config.load import listed_errors, readable

    found = ENVIRONMENTS.load(data["kind"])
    try:
        made = found.model_validate(data)
    except ValidationError as error:
        raise BadInput(
            f"{data['kind']} has invalid settings:\n" + "\n".join(listed_errors(error, partial(readable, model=found))),
            expected="settings of the environment, with --set KEY=VALUE",
            next_step="docs/config.md describes the settings of every environment",
        ) from None
    return made
