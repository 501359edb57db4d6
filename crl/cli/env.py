"""`crl env …`: the environments that there are, whether one keeps its promises, and a person who plays one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import console, parse_overrides, print_listing, say_json
from crl.errors import BadInput

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
        found = check_programs(chosen) if programs else check(plan, lambda each: status.update(each))
    if json:
        say_json([{"check": each.check, "outcome": each.outcome, "message": each.message} for each in found], indent=2)
    else:
        from rich.text import Text

        from crl.report.terminal import Listing

        styles = {"ok": "green", "failed": "bold red", "note": ""}
        rows = [(each.check, Text(each.outcome, styles[each.outcome]), each.message) for each in found]
        print_listing(Listing(("check", "result", "found"), rows, words={"found"}))
    require_passed(found, name)


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
            f"an episode of {chosen.environment.kind} is a program that runs itself, which nobody steps",
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
