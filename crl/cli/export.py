"""`crl export`: a trained agent leaves its run, as a folder and, if asked, as a repository of the Hugging Face Hub; or
episodes do, as data that TRL takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from crl.cli.shared import RunArgument, say, shown
from crl.cli.sql import MemoryOption, SecondsOption
from crl.errors import BadInput
from crl.paths import possible_path
from crl.run.find import find_run
from crl.serve import EpisodeFormat


def export(
    run: RunArgument,
    to: Annotated[Path, typer.Option("--to", metavar="FOLDER", help="Where to write; must not exist yet.")],
    round: Annotated[
        int | None, typer.Option(min=0, help="The agent after this round; default the newest finished one.")
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The round with the most held-out success.")] = False,
    role: Annotated[str, typer.Option(metavar="ROLE", help="The role whose weights it has.")] = "actor",
    merge: Annotated[bool, typer.Option("--merge", help="Merge a LoRA adapter into its base model.")] = False,
    push: Annotated[
        str | None,
        typer.Option(metavar="OWNER/NAME", help="Upload it to the Hugging Face Hub, too; a new repository is private."),
    ] = None,
    episodes: Annotated[
        bool, typer.Option("--episodes", help="Write episodes for TRL's trainers, and no agent.")
    ] = False,
    where: Annotated[
        str | None,
        typer.Option(metavar="SQL", help="Which episodes: a condition over columns of the view `episodes`."),
    ] = None,
    format: Annotated[
        EpisodeFormat | None,
        typer.Option(help="messages, the default; or preference: pairs of a win and a loss of a group."),
    ] = None,
    seconds: SecondsOption = 300,
    memory: MemoryOption = 4,
) -> None:
    """Write a trained agent to a folder: model, bank, prompts, card. Or, with --episodes, training data for TRL.

    transformers, peft and vLLM open the folder. `model: FOLDER` in an experiment goes on with its weights; `crl bank
    import` takes its bank.
    """
    from crl.run.files import require_new

    require_new(possible_path(to, "--to"))
    if episodes:
        others = {"--round": round, "--best": best, "--role": role != "actor", "--merge": merge, "--push": push}
        if given := [name for name, value in others.items() if value not in (None, False)]:
            raise BadInput(
                f"{' and '.join(given)} cannot be used with --episodes, which writes no agent",
                expected="--episodes alone, or with --where and --format",
            )
        _export_episodes(run, to, format or "messages", where, seconds, memory)
        return
    if where is not None or format is not None:
        raise BadInput("--where and --format choose episodes", expected="--episodes with them")
    from crl.policies.hub import HUB_ID
    from crl.serve.export import export_agent
    from crl.serve.push import push_folder

    if round is not None and best:
        raise BadInput("--round and --best are both given", expected="one of them")
    if push is not None and ((name := HUB_ID.fullmatch(push)) is None or name[2] is not None):
        raise BadInput(f"--push {push!r} names no repository", expected="OWNER/NAME")
    found = export_agent(find_run(run), to, round, best=best, role=role, merge=merge)
    told = found.description
    say(f"{shown(to)}: {told['role']} of {told['experiment']} after round {told['round']}, {_KINDS[told['kind']]}")
    if told["kind"] == "adapter":
        say(f"  its base model is {told['source']}")
    if found.entries is not None:
        say(f"  {shown(to / 'bank')}: {found.entries} entries, for `crl bank import` and `datasets.load_dataset`")
    say(f"  {shown(to / 'README.md')}: the model card; read it before you share the folder")
    if push is not None:
        say(f"uploaded: {push_folder(to, push)}")


_KINDS = {
    "full": "whole weights",
    "adapter": "an adapter",
    "merged": "an adapter merged into its base",
    "base": "the base model as it is",
}


def _export_episodes(
    run: str, to: Path, format: EpisodeFormat, where: str | None, seconds: float, memory: float
) -> None:
    from crl.serve.episodes import CARD, PROVENANCE, ROWS, write_episodes

    written = write_episodes(find_run(run), to, format, where, seconds=seconds, gigabytes=memory)
    say(f"{written.rows} {'pairs' if format == 'preference' else 'conversations'} of {written.episodes} episodes")
    for reason, count in written.left_out.items():
        say(f"  left out: {count} ({reason})")
    say(f"  {shown(to / ROWS)}")
    say(f"  {shown(to / PROVENANCE)}: the record, the filter, the SHA-256 of the rows")
    say(f"  {shown(to / CARD)}: how TRL takes them")
