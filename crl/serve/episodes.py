"""Episodes of a run as data that TRL takes: conversations (`messages`), and pairs of a win and a loss (`preference`).

Messages are those of the record. A prompt is read from the text that is kept of it, and what came between two answers
from its token ids; then the model's own chat must write exactly the recorded ids for them. What it does not is left out
by name, so no text of an environment or a model can pass for a message that nobody sent.

A row of `messages` is a sequence as the model read it: an episode has several where its history is cut, and a program
one per conversation. A pair is made of two episodes of a group whose first prompts are equal, so a guided episode is
compared with one that the same experiences guided. What both have in common is the prompt; it ends before an answer.

    data/train.jsonl    the rows
    provenance.json     where they come from, the filter, what was left out, the SHA-256 of the rows
    README.md           the same for people, and for `datasets.load_dataset`
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import yaml

from crl.errors import BadInput
from crl.policies.tool_turns import schema_of
from crl.records import Episode, Generation, Turn, rows_of
from crl.report.asked import asked
from crl.report.markdown import as_text, code
from crl.run.directory import RunDirectory
from crl.run.files import sha256_file, whole_folder
from crl.run.manifest import key_of
from crl.serve import EpisodeFormat
from crl.serve.read_back import Conversation, LeftOut, Reader

ROWS, PROVENANCE, CARD = "data/train.jsonl", "provenance.json", "README.md"
FORMAT = "complementary-rl episodes"


@dataclass(frozen=True)
class Written:
    """What was written."""

    episodes: int
    """That the filter chose."""
    rows: int
    left_out: dict[str, int]
    """By reason, how many episodes (of a program: conversations)."""


def write_episodes(
    run_path: Path, target: Path, format: EpisodeFormat, where: str | None = None, *, seconds: float, gigabytes: float
) -> Written:
    """Write the chosen episodes of a run to a new folder, whole or not at all; equal arguments give equal files.

    `where`: a condition of SQL over the view `episodes`, asked as `crl sql` asks, within `seconds` and `gigabytes`.
    Raises BadInput where it is no condition, or nothing is left to write; RecordDamaged; as `whole_folder`.
    """
    run = RunDirectory.open(run_path)
    chosen = _chosen(run.path, where, seconds, gigabytes)
    left_out: Counter[str] = Counter()
    reader = Reader(run.method)
    count = 0
    with whole_folder(target) as folder:
        (folder / ROWS).parent.mkdir()
        with (folder / ROWS).open("w", encoding="utf-8", newline="\n") as file:
            for (number, stage), names in sorted(chosen.items()):
                played = _played(run, number, stage, names, reader, left_out)
                made = _messages(played) if format == "messages" else _pairs(played, left_out)
                for row in made:
                    file.write(json.dumps({"round": number, "stage": stage, **row}, ensure_ascii=False) + "\n")
                    count += 1
        total = sum(map(len, chosen.values()))
        if not count:
            raise BadInput(
                f"of {total} episodes none is left to write" + (f": {dict(+left_out)}" if +left_out else ""),
                expected="episodes that were played to an end"
                + (", a win and a loss of one group among them" if format == "preference" else ""),
                where="--where",
                next_step="choose others: --where, over the columns of `episodes` (docs/schema.md)",
            )
        written = Written(total, count, dict(sorted((+left_out).items())))
        provenance = _provenance(run, format, where, chosen, written, folder / ROWS)
        text = json.dumps(provenance, indent=1, ensure_ascii=False)
        (folder / PROVENANCE).write_text(f"{text}\n", encoding="utf-8", newline="\n")
        (folder / CARD).write_text(_card(provenance), encoding="utf-8", newline="\n")
    return written


def _chosen(run: Path, where: str | None, seconds: float, gigabytes: float) -> dict[tuple[int, str], set[str]]:
    # Round 0 prepares: its demonstrations were written and not sampled. A comment at the end of the condition does not
    # hide the parenthesis in a line of its own.
    query = "SELECT round, stage, episode_id FROM episodes WHERE round > 0" + (f" AND (\n{where}\n)" if where else "")
    chosen: dict[tuple[int, str], set[str]] = {}
    with asked([run], query, seconds=seconds, gigabytes=gigabytes) as (_, batches):
        for number, stage, episode_id in chain.from_iterable(batches):
            chosen.setdefault((int(number), str(stage)), set()).add(str(episode_id))
    if not chosen:
        raise BadInput(
            "no episode is chosen", expected="at least one", where="--where", next_step="`crl sql` shows what there is"
        )
    return chosen


Played = tuple[Episode, list[Conversation]]


def _played(
    run: RunDirectory, number: int, stage: str, names: set[str], reader: Reader, left_out: Counter[str]
) -> Iterator[Played]:
    """The chosen episodes of a stage, in the order of the record, with what could be read of each."""

    def rows(row_type: type[Any], column: str, wanted: Sequence[str]) -> list[Any]:
        table = run.read(number, stage, row_type)
        return rows_of(row_type, table.filter(pc.is_in(table[column], value_set=pa.array(wanted, pa.string()))))

    episodes: list[Episode] = rows(Episode, "episode_id", sorted(names))
    turns: dict[str, list[Turn]] = {}
    for turn in rows(Turn, "episode_id", sorted(names)):
        turns.setdefault(turn.episode_id, []).append(turn)
    ids = [name for episode in episodes for name in episode.generation_ids]
    sequences = {row.generation_id: row for row in rows(Generation, "generation_id", ids)}
    for episode in episodes:
        try:
            if episode.error is not None:
                raise LeftOut(f"error: {episode.error}")
            own = sorted(turns.get(episode.episode_id, []), key=lambda row: row.turn)
            yield episode, reader.read(episode, own, sequences, left_out)
        except LeftOut as reason:
            left_out[str(reason)] += 1


def _messages(played: Iterable[Played]) -> Iterator[dict[str, Any]]:
    for episode, conversations in played:
        for at, each in enumerate(conversations):
            yield {
                "messages": each.messages,
                "prompt_messages": each.prompt_messages,
                **_shown_tools(each),
                "episode_id": episode.episode_id,
                "sequence": at,
                "sequences": len(conversations),
                "generation_id": each.sequence.generation_id,
                "weights_digest": each.sequence.weights_digest,
                **_task(episode),
                "member": episode.member,
                **_guides(episode),
                **_outcome(episode),
                "stops": each.stops,
            }


def _pairs(played: Iterable[Played], left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """Wins and losses in the order of the record. Of the fewer ones some are in several pairs; each is in one."""
    groups: dict[tuple[int, str], tuple[list[Played], list[Played]]] = {}
    for episode, conversations in played:
        if len(conversations) != 1:
            left_out["several_sequences"] += len(conversations) > 1
            continue
        begins = json.dumps([conversations[0].messages[: conversations[0].prompt_messages], episode.family])
        wins, losses = groups.setdefault((episode.group, begins), ([], []))
        (wins if episode.success else losses).append((episode, conversations))
    for wins, losses in groups.values():
        if not (wins and losses):
            left_out["no_partner"] += len(wins) + len(losses)
            continue
        for at in range(max(len(wins), len(losses))):
            (won, [chosen]), (lost, [rejected]) = wins[at % len(wins)], losses[at % len(losses)]
            shared = _shared(chosen.messages, rejected.messages)
            if shared is None:
                left_out["pair of equal plays"] += 1
                continue
            yield {
                "prompt": chosen.messages[:shared],
                "chosen": chosen.messages[shared:],
                "rejected": rejected.messages[shared:],
                **_shown_tools(chosen),
                **_task(won),
                **_guides(won),
                **{
                    f"{side}_{name}": value
                    for side, episode, of in (("chosen", won, chosen), ("rejected", lost, rejected))
                    for name, value in (
                        ("episode_id", episode.episode_id),
                        ("generation_id", of.sequence.generation_id),
                        *_outcome(episode).items(),
                    )
                },
            }


def _shared(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """How many messages two conversations begin with, up to an answer; None where one says nothing else."""
    if one == other:
        return None
    least = min(len(one), len(other))
    count = next((at for at in range(least) if one[at] != other[at]), least - 1)
    # Another answer is behind the same prompt; another reply is behind the same answer.
    return count if one[count]["role"] == other[count]["role"] == "assistant" else count - 1


def _task(episode: Episode) -> dict[str, Any]:
    names = ("family", "group", "environment_seed", "stream", "goal")
    return {name: getattr(episode, name) for name in names}


def _guides(episode: Episode) -> dict[str, Any]:
    return {"guided": episode.guided, "entry_ids": episode.entry_ids}


def _outcome(episode: Episode) -> dict[str, Any]:
    parts = dict(zip(episode.reward_names, episode.reward_values, strict=True))
    names = ("success", "reward", "stop_reason", "turns", "invalid_actions")
    return {**{name: getattr(episode, name) for name in names}, "reward_parts": parts}


def _shown_tools(conversation: Conversation) -> dict[str, Any]:
    tools = conversation.tools
    return {"tools": json.dumps([schema_of(tool) for tool in tools], ensure_ascii=False)} if tools else {}


# -- where they come from ----------------------------------------------------------------------------------------------


def _provenance(
    run: RunDirectory, format: EpisodeFormat, where: str | None, stages: Iterable[tuple[int, str]], written: Written,
    rows: Path,
) -> dict[str, Any]:  # fmt: skip
    method = run.method
    data = {each.name: dict(each.data_digests) for each in method.families if each.data_digests}
    return {
        "format": FORMAT,
        "rows_are": format,
        "experiment": run.experiment_name,
        "recipe": method.recipe.kind,
        "model": method.role("actor").model,
        "method_digest": run.method_digest,
        "stages": {key_of(*place): run.manifest(*place).digest for place in sorted(stages)},
        "where": where,
        "episodes": written.episodes,
        "rows": written.rows,
        "left_out": written.left_out,
        "files": {ROWS: {"sha256": sha256_file(rows), "rows": written.rows}},
        **({"data": data} if data else {}),
    }


_ABOUT: dict[EpisodeFormat, tuple[str, str]] = {
    "messages": (
        "A row is a conversation as the model read it, whole: an episode has several where its history is cut. The "
        "answers behind the first `prompt_messages` messages were sampled in it; those before were only read.",
        """from trl import SFTConfig, SFTTrainer

trainer = SFTTrainer(MODEL, args=SFTConfig("out", assistant_only_loss=True), train_dataset=rows)""",
    ),
    "preference": (
        "A row is a win and a loss of one group: the same task, the same first prompt. What both begin with is the "
        "prompt; what follows may be many turns, so `chosen` and `rejected` hold what the environment replied, too.",
        """from trl import DPOConfig, DPOTrainer

trainer = DPOTrainer(MODEL, args=DPOConfig("out"), train_dataset=rows)""",
    ),
}


def _card(provenance: Mapping[str, Any]) -> str:
    """`README.md`."""
    about, trainer = _ABOUT[provenance["rows_are"]]
    title = f"Episodes of {provenance['experiment']}"
    front = {
        "pretty_name": title,
        "tags": ["complementary-rl", "trl", provenance["rows_are"]],
        "configs": [{"config_name": "default", "data_files": [{"split": "train", "path": ROWS}]}],
    }
    newest, left_out = list(provenance["stages"])[-1], provenance["left_out"]
    lines = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n# {title}\n",
        f"{provenance['rows']} rows of {provenance['episodes']} episodes, played by "
        f"{as_text(provenance['model'])} and what was trained from it. {about}\n",
        "```python",
        "from datasets import load_dataset",
        trainer.split("\n", 1)[0],
        '\nrows = load_dataset("path/to/this/folder", split="train")' + trainer.split("\n", 1)[1],
        "```\n",
        f"Filter: {code(provenance['where']) if provenance['where'] else 'all episodes of training rounds'}\n",
        f"Left out: {', '.join(f'{as_text(why)} {count}' for why, count in left_out.items()) or 'nothing'}\n",
        f"`provenance.json` names the record: method {provenance['method_digest'][:12]}, {newest} "
        f"{provenance['stages'][newest][:12]}, and the SHA-256 of the rows. Environments and models wrote the texts.\n",
    ]  # fmt: skip
    return "\n".join(lines)
