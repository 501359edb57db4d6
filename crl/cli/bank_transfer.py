"""`crl bank export` and `crl bank import`: a bank leaves a run and becomes the beginning of another experiment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from crl.cli.shared import RunArgument, RunsOption, command, load, say, shown
from crl.errors import BadInput
from crl.paths import possible_path
from crl.run.find import find_run
from crl.text.unicode import hidden_in
from crl.transfer import CARD, PROVENANCE, SKILL_FORMAT, Format, file_of

if TYPE_CHECKING:
    from crl.config import Method
    from crl.run.directory import RunDirectory
    from crl.transfer.gather import Gathered


def export_bank(
    run: RunArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to write; must not exist yet.")],
    round: Annotated[
        int | None, typer.Option(min=0, help="The bank after this round; default the newest finished one.")
    ] = None,
    format: Annotated[
        Literal[Format, "skills"],
        typer.Option(
            help="parquet, jsonl; huggingface: a dataset folder for `load_dataset`; skills: a folder with a SKILL.md "
            "per task family, for coding agents."
        ),
    ] = "parquet",
    embeddings: Annotated[bool | None, typer.Option(help="Include the vectors; default yes, except for jsonl.")] = None,
) -> None:
    """Write the bank after a round to a folder. Entries, every text that led to them, uses, and where it comes from."""
    from crl.run.files import require_new
    from crl.transfer.folder import write_folder
    from crl.transfer.gather import TABLES, gather

    require_new(possible_path(to, "--to"))
    if format == "skills":
        if embeddings is not None:
            raise BadInput("skills are texts without vectors", expected="--format skills without --embeddings")
        _export_skills(gather(find_run(run), round, embeddings=False), to)
        return
    vectors = format != "jsonl" if embeddings is None else embeddings
    provenance = write_folder(gather(find_run(run), round, embeddings=vectors), to, format)
    say(
        f"{provenance['entries']} entries of {provenance['experiment']}, bank after round {provenance['round']}, "
        f"snapshot {provenance['snapshot_digest'][:12]}"
    )
    for name in TABLES:
        relative = file_of(name, format)
        say(f"  {to / relative}: {provenance['files'][relative]['rows']} rows")
    say(f"  {to / PROVENANCE}: where it comes from, and the SHA-256 of every table")
    if format == "huggingface":
        say(f"  {to / CARD}: the dataset card")
        say(f'in Python: datasets.load_dataset("{to}", split="train")')
    say(f"to begin another experiment with it: crl bank import conf/NAME.yaml {shown(to)}")


def _export_skills(bank: Gathered, to: Path) -> None:
    from crl.transfer.gather import ExportedEntry
    from crl.transfer.skills import EPISODES, SKILL, write_skills

    counts = write_skills(bank, to)
    where = bank.provenance
    say(f"{sum(counts.values())} entries of {where['experiment']}, bank after round {where['round']}")
    for name, count in counts.items():
        say(f"  {to / name / SKILL}: {count} experience{'s' if count != 1 else ''}, the best first")
    say(f"  {EPISODES} beside it: the episodes behind each")
    rows = bank.tables[ExportedEntry.table].to_pylist()
    _say_hidden({row["entry_id"]: found for row in rows if (found := hidden_in(row["text"]))})
    say(f"a model wrote them: read them before an agent does. to begin with them: crl bank import conf/NAME.yaml "
        f"{shown(to)}")  # fmt: skip


def _say_hidden(hidden: Mapping[str, str]) -> None:
    for entry_id, found in list(hidden.items())[:_MOST_NAMED]:
        say(f"hidden characters in {entry_id}: {found}")
    if len(hidden) > _MOST_NAMED:
        say(f"and in {len(hidden) - _MOST_NAMED} more entries")
    if hidden:
        say("a model reads them, and people see none: every command shows them as \\u200b and the like")


def import_bank(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="A YAML file, or an experiment without a round 0.")],
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A folder that `crl bank export` or `crl export` wrote, skills (SKILL.md), or another run.",
        ),
    ],
    round: Annotated[
        int | None, typer.Option(min=0, help="For a run: the bank after this round; default the newest finished one.")
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option(metavar="FROM=TO", help="A task family there and its name here; repeatable.")
    ] = None,
    runs: RunsOption = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="As you will pass it to `crl train`.")
    ] = None,
) -> None:
    """Begin an experiment with the bank of another one. Every entry keeps its provenance; counters start at zero."""
    from crl.rounds.recipe import recipe_of
    from crl.transfer.take import fitting, put

    families = parse_families(family or [])
    method, opened = _target(target, runs, set or [])
    gathered = opened_bank(source, round, method)
    content = fitting(method, recipe_of(method), gathered, families)
    directory = opened()  # made only now, where it is not there
    taken = put(directory, content)
    where = gathered.provenance
    counts = ", ".join(f"{count} in family {name}" for name, count in sorted(taken.entries.items()))
    untried = where["format"] == SKILL_FORMAT
    of = (
        f"the skills in {shown(Path(source))}"
        if untried
        else f"{where['experiment']}, bank after round {where['round']}"
    )
    say(f"{directory.experiment_name} begins with {sum(taken.entries.values())} entries of {of}: {counts}")
    if taken.repeated:
        say("it was already imported: nothing changed")
    for reason, count in sorted(taken.left_out.items()):
        say(f"left out: {count} ({_REASONS[reason]})")
    _say_hidden(taken.hidden)
    where_else = (
        "what a file says of them is in `crl bank why`" if untried else "those of the source are in `imported_entries`"
    )
    say(f"uses, outcomes and retrieval counts start at zero; {where_else}")
    again = f"crl resume {shown(directory.path)} --rounds 3"
    if _is_config(target):
        again = command("crl", "train", target, options={"--runs": runs, "--set": set})
    say(f"next: {again}")


_MOST_NAMED = 10
_REASONS = {
    "capacity_fifo": "the family is full: the newest were kept",
    "capacity_least_useful": "the family is full: the most useful were kept",
    "text_too_long": "longer than method.recipe.distill.max_characters",
    "control_token": "their text holds a control token of a chat, such as <s> or [MASK]",
    "duplicate": "the family already has the text",
}


def parse_families(pairs: list[str]) -> dict[str, str]:
    """`lake=pond` to {"lake": "pond"}. Raises BadInput."""
    found: dict[str, str] = {}
    for pair in pairs:
        source, separator, target = pair.partition("=")
        if not separator or not source or not target or source in found:
            raise BadInput(f"--family {pair!r} is not FROM=TO", expected="two names, such as --family lake=pond")
        found[source] = target
    return found


def _is_config(name: str) -> bool:
    return Path(name).suffix in (".yaml", ".yml")


def opened_bank(name: str, round_number: int | None, method: Method | None = None) -> Gathered:
    """The bank of a run after a round, or an exported one; for a method also one of skills. Raises BadInput."""
    from crl.transfer.folder import is_export, read_folder
    from crl.transfer.gather import gather
    from crl.transfer.skills import is_skills, read_skills

    path = possible_path(name, "the bank")
    if not is_export(path) and is_export(path / "bank"):  # of an agent that `crl export` wrote
        path = path / "bank"
    if method is not None and not is_export(path) and is_skills(path):
        if round_number is not None:
            raise BadInput(f"{name} holds skills, which have no rounds", expected="the command without --round")
        return read_skills(path, method.recipe.bank_use().max_characters)
    if not is_export(path):
        try:
            run = find_run(name)
        except BadInput as error:
            raise BadInput(
                f"there is no run and no exported bank {name!r}",
                expected=f"a folder of `crl bank export` or `crl export`, one with skills (SKILL.md), {error.expected}",
                where=error.where,
                next_step=f"{error.next_step}; `crl bank export RUN --to FOLDER` writes an exported bank",
            ) from None
        return gather(run, round_number)
    found = read_folder(path)
    if round_number is not None and round_number != found.provenance["round"]:
        raise BadInput(
            f"--round {round_number}: {name} holds the bank after round {found.provenance['round']}",
            expected="no --round with an exported bank",
        )
    return found


def _target(name: str, runs: Path | None, pairs: list[str]) -> tuple[Method, Callable[[], RunDirectory]]:
    """The method of an experiment, and what opens it: made where a YAML file names one that is not there. Raises
    BadInput."""
    from crl.config.load import runs_root
    from crl.run.directory import RunDirectory

    if not _is_config(name):
        if runs is not None or pairs:
            raise BadInput(f"--runs and --set do not apply to the run {name}", expected="them only with a YAML file")
        directory = RunDirectory.open(find_run(name))
        return directory.method, lambda: directory
    loaded = load(name, pairs, runs)
    return loaded.method, partial(RunDirectory.create_or_open, loaded, runs_root(loaded))
