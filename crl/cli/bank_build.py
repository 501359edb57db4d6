"""`crl bank build`: a bank out of chats that somebody has, written by a model as it is; nothing is trained.

It makes a run of one round (recipe `bank_from_chats`), so the bank has what every bank has: `crl bank why`, SQL,
`crl verify`, a killed build that goes on, and a way into other experiments.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import command, parse_overrides, say, shown
from crl.errors import BadInput
from crl.paths import quoted

if TYPE_CHECKING:
    from crl.config import Experiment
    from crl.run.directory import RunDirectory

_LEFT_OUT = 10
"""Chats that are left out, of which the line is said."""


def build_bank(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model that writes, as `crl doctor` takes it.")],
    source: Annotated[Path, typer.Option("--from", metavar="FILE", help="Chats: .jsonl, .json, .parquet, .csv.")],
    to: Annotated[Path | None, typer.Option("--to", metavar="FOLDER", help="The bank; default runs/FILE-bank.")] = None,
    family: Annotated[
        str | None, typer.Option(metavar="NAME", help="Task family of what is learned; default FILE's name.")
    ] = None,
    prompts: Annotated[str, typer.Option(metavar="NAME", help="A file of prompts with `distill`.")] = "chats",
    embedder: Annotated[
        str | None, typer.Option(metavar="NAME", help="minilm, lexical or another; default minilm, for tiny lexical.")
    ] = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Any key of an experiment.")
    ] = None,
) -> None:
    """Write a bank from chats that you have. A model reads each; nothing is trained.

    Typed again, it goes on where it was killed. Every other `crl bank` command takes the folder.
    """
    from crl.cli.progress import LiveProgress
    from crl.cli.train import driver_here, interruptible_run
    from crl.config.load import runs_root
    from crl.preflight import check_ready
    from crl.run.directory import RunDirectory, stage_seconds

    name = re.sub(r"[^A-Za-z0-9_-]", "-", source.stem).strip("-_") or "chats"
    path = to if to is not None else runs_root() / f"{name[:50].lower()}-bank"
    loaded = _experiment(model, source, path, family or _family(name), prompts, embedder, set or [])
    runtime = loaded.runtime.without_prefect()
    _say_chats(loaded)  # refused here what can be refused: before a model is loaded
    check_ready(loaded.model_copy(update={"runtime": runtime}), path, 1, say=say)
    directory = RunDirectory.create_or_open(loaded, runs_root(loaded))
    options = {
        "--from": source, "--to": to, "--family": family, "--prompts": prompts if prompts != "chats" else None,
        "--embedder": embedder, "--set": set,
    }  # fmt: skip
    again = command("crl", "bank", "build", model, options=options)
    with (
        interruptible_run(path, again),
        LiveProgress(taken=stage_seconds(path)) as live,
        driver_here(directory, runtime, live) as driver,
    ):
        driver.run_rounds(driver.set_target(1, purpose="crl bank build")[1])
    _closing_words(directory)


def _family(name: str) -> str:
    kept = re.sub(r"[^a-z0-9_]", "_", name.lower())[:31]
    return kept if re.match("[a-z]", kept) else f"chats_{kept}"[:31]


def _experiment(
    model: str, source: Path, path: Path, family: str, prompts: str, embedder: str | None, pairs: list[str]
) -> Experiment:
    """The experiment of one round. Raises BadInput."""
    from crl.config import RECIPES
    from crl.config.load import parse_experiment

    absolute, recipe = path.absolute(), "bank_from_chats"
    reader: Any = RECIPES.load(recipe)
    data: dict[str, Any] = {
        "name": absolute.name,
        "method": {
            "families": [{"name": family, "environment": {"kind": reader.ENVIRONMENT, "data": str(source)}}],
            "roles": {"extractor": {"model": model, "sampling": {"max_new_tokens": 48 if model == "tiny" else 256}}},
            "recipe": {
                "kind": recipe,
                "embedder_name": embedder or ("lexical" if model == "tiny" else "minilm"),
            },
            "prompts": prompts,
        },
        # Its rows were checked as they came in, and are as they are committed: there is nothing more to watch.
        "runtime": {"runs": str(absolute.parent), "validate_every": 0, "trackers": []},
    }  # fmt: skip
    return parse_experiment(data, parse_overrides(pairs), base=Path("conf"), where="crl bank build")


def _say_chats(loaded: Experiment) -> None:
    """How many chats there are, and what is wrong with those that are left out. Raises BadInput where none is left."""
    for environment in (each.environment for each in loaded.method.families):
        for brought in environment.outside_rows():
            rows = brought.rows.select(["location", "reason_code", "detail"]).to_pylist()
            left_out = [row for row in rows if row["reason_code"] != "ok"]
            say(f"{len(rows) - len(left_out)} chats of {brought.file}")
            for row in left_out[:_LEFT_OUT]:
                say(f"  left out: {row['location']}: {row['reason_code']}: {row['detail']}")
            if len(left_out) > _LEFT_OUT:
                say(f"  and {len(left_out) - _LEFT_OUT} more (table `chats` of the bank has all)")


def _closing_words(directory: RunDirectory) -> None:
    """What came of it. Raises BadInput where no experience did."""
    from crl.records import BankEvent, Distillation
    from crl.report.bank import entries_after
    from crl.report.views import write_catalog

    outputs = directory.read(1, "distill", Distillation)["reason_code"].to_pylist()
    events = directory.read(1, "consolidate", BankEvent).select(["kind", "reason"]).to_pylist()
    entries, where = entries_after(directory.path), shown(directory.path)
    write_catalog(directory.path)
    say(f"{where}: {len(entries)} experiences from {len(outputs)} chats")
    _say_counts("malformed outputs", (reason for reason in outputs if reason != "ok"))
    _say_counts("experiences not taken", (row["reason"] for row in events if row["kind"] == "rejected"))
    if not entries:
        raise BadInput(
            "the model wrote no experience: the bank is empty",
            expected="at least one output in the form that the prompt asks for",
            where=str(directory.path),
            next_step=f'look at its outputs (crl sql {where} "SELECT output FROM generations"), then use a larger '
            "model, or --set method.recipe.distill.format=json, with another --to",
        )
    family = directory.method.families[0].name
    say("next:")
    for step, purpose in (
        (f"crl bank show {where}", "read it"),
        (f"crl bank import conf/NAME.yaml {where} --family {quoted(family)}=YOURS", "begin an experiment with it"),
    ):
        say(f"  # {purpose}\n  {step}")


def _say_counts(what: str, reasons: Iterable[str]) -> None:
    if counts := sorted(Counter(reasons).items()):
        say(f"  {what}: {', '.join(f'{reason} {count}' for reason, count in counts)}")
