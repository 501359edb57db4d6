"""Why an experience is in the bank: gathers its story from the rows of every round.

Who asks about one entry asks about its ancestors too. They are resolved first, from the merges alone; then every table
is read once, for all of them, in the rounds that can hold an answer. So a long run costs little more than a short one,
and the stories of a whole bank (for an export) cost about as much as reading its tables.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from crl.bank.segments import load_texts
from crl.errors import BadInput, RecordDamaged
from crl.paths import quoted
from crl.records import (
    TRIAL,
    BankChange,
    BankEvent,
    Credit,
    Episode,
    Evaluation,
    Generation,
    ImportedEntry,
    Operation,
    Retrieval,
    Row,
    Trial,
    Weights,
)
from crl.report.bank import banked_round
from crl.report.story import LEFT, MADE, EvaluationUse, Event, Import, SourceEpisode, Story, Tried, Use, Writing
from crl.report.view_files import Tables
from crl.rounds.recipe import recipe_in
from crl.run.directory import RunDirectory
from crl.run.pruned import pruned

_CHANGES_NOTHING = ("rejected", "keep")
_OF_OUTPUT = ("prompt", "output", "weights_digest", "role")
_INDEX = re.compile(r"(\d+)$")
Moment = tuple[int, int]
"""Round, and position among the events of the round."""
Rows = list[dict[str, Any]]


def why(run_path: Path, entry_id: str, *, until: int | None = None) -> Story:
    """The story of one entry, as it was after round `until` where that is given.

    Raises BadInput for a round without a bank, and for an entry that the bank had never heard of then, naming close
    ones; RecordDamaged.
    """
    if until is not None:
        run = RunDirectory.open(run_path)
        banked_round(run, recipe_in(run), until)
    story = stories(run_path, [entry_id], until=until)[entry_id]
    if not story.events:
        raise _unknown(run_path, entry_id, until)
    return story


def stories(run_path: Path, entry_ids: Sequence[str], *, until: int | None = None) -> dict[str, Story]:
    """The stories of many entries, by id; an empty one where nothing is known of an entry. Raises RecordDamaged."""
    with Tables(run_path, until) as tables:
        facts = _Facts(tables, entry_ids)
    return {entry_id: facts.story(entry_id) for entry_id in entry_ids}


class _Facts:
    """The rows that speak of some entries and their ancestors."""

    def __init__(self, tables: Tables, entry_ids: Sequence[str]) -> None:
        self._known_until = max(tables.rounds(BankEvent), default=0)
        derived = tables.select(
            BankEvent, ["entry_id", "event_id", "round", "kind", "operation_id", "parents"], where="len(parents) > 0"
        )
        family = _with_ancestors(entry_ids, derived)
        self._events = self._events_of(tables, family, [event for event in derived if event["kind"] == "merge"])
        self._read_writings(tables)
        self._read_imports(tables)
        self._read_uses(tables, family)

    def story(self, entry_id: str, until: Moment | None = None) -> Story:
        """What became of an entry, up to and including a moment (None: up to now)."""
        listed = [event for event in self._events.get(entry_id, []) if until is None or event["moment"] <= until]
        events: list[Event] = []
        version: int | None = None
        text: str | None = None
        for place, row in enumerate(listed):
            kind = row["kind"] if row["entry_id"] == entry_id else "merged"
            if kind in MADE:
                version = 1 + (version or 0) if kind == "update" else 1
                before = text if kind == "update" else None
                end = next(
                    (each["moment"] for each in listed[place + 1 :] if each["kind"] not in _CHANGES_NOTHING), None
                )
                events.append(self._made(row, version, before, end))
                text = events[-1].text
                continue
            operation = self._operations.get(row["operation_id"] or "") if kind == "rejected" else None
            events.append(
                Event(
                    round=row["round"],
                    event_id=row["event_id"],
                    kind=kind,
                    version=version,
                    operation_id=operation["operation_id"] if operation else row["operation_id"],
                    before=text,
                    text=text if kind == "keep" else operation["text"] if operation else None,
                    asked=operation["kind"] if operation else "operation" if kind == "rejected" else None,
                    reason=row.get("reason"),
                    other=row["entry_id"] if kind == "merged" else row.get("repeats"),
                    writing=self._writing(operation),
                    tried=self._tried.get(row["operation_id"] or "") if kind == "rejected" else None,
                )
            )
            if kind in LEFT:
                version = text = None
        family = next((row["family"] for row in listed if row["family"]), "")
        return Story(entry_id, family, tuple(events), self._known_until)

    def _made(self, row: dict[str, Any], version: int, before: str | None, end: Moment | None) -> Event:
        """The event that made a version, which was in the bank until the moment `end`; None: it is."""
        entry_id, operation = row["entry_id"], self._operations.get(row["operation_id"] or "")
        moment, digest = row["moment"], row["after_digest"]
        # A bank holds this version from its round on, up to the round before the one that wrote the next.
        first, last = moment[0], self._known_until + 1 if end is None else end[0] - 1
        imported = self._imports.get(entry_id) if row["kind"] == "import" else None
        text = operation["text"] if operation is not None else self._texts.get(digest)
        if text is None or (imported is None and row["kind"] == "import"):
            raise RecordDamaged(
                f"nothing in the record holds the text or the origin of {row['event_id']} ({row['kind']})",
                expected="the operation or the import behind every text",
                where=f"round {moment[0]}, table bank_events",
                next_step="run `crl verify` on the run",
            )
        parents = row["parents"]  # merged into it, or it waits beside them
        episodes = operation["episode_ids"] if operation is not None else []
        uses = self._uses.get(entry_id, [])
        return Event(
            round=moment[0],
            event_id=row["event_id"],
            kind=row["kind"],
            version=version,
            operation_id=operation["operation_id"] if operation else None,
            before=before,
            text=text,
            writing=self._writing(operation),
            tried=self._tried.get(row["operation_id"] or ""),
            content_digest=digest,
            embedder_cut=bool(operation["embedder_cut"] if operation is not None else self._cuts.get(digest)),
            parents=tuple(self.story(parent, moment) for parent in parents if parent != entry_id),
            episodes=tuple(self._sources.get(each, SourceEpisode(each)) for each in episodes),
            imported=imported,
            uses=tuple(use for bank, shown, use in uses if first <= bank <= last and shown == digest),
            evaluations=tuple(use for use in self._evaluations.get(entry_id, []) if first <= use.round <= last),
        )

    def _writing(self, operation: dict[str, Any] | None) -> Writing | None:
        if operation is None:
            return None
        generation = self._generations.get(operation["generation_id"], {})
        writer = self._writers.get(generation.get("weights_digest", ""), {})
        of_output: dict[str, Any] = {name: generation.get(name) for name in _OF_OUTPUT}
        return Writing(
            **{name: operation[name] for name in ("operation_id", "distillation_id", "generation_id")},
            **of_output,
            checkpoint=writer.get("checkpoint") or writer.get("source"),
            pruned=writer.get("checkpoint") in self._pruned,
            updates=writer.get("updates"),
        )

    def _events_of(self, tables: Tables, family: set[str], merges: Rows) -> dict[str, Rows]:
        """Events by the entry they concern, in order; a merge concerns its parents too."""
        names = "event_id round kind entry_id family operation_id after_digest parents reason repeats"
        kinds = ", ".join(f"'{kind}'" for kind in (*MADE, *LEFT, *_CHANGES_NOTHING))
        found: dict[str, Rows] = defaultdict(list)
        for event in tables.select(BankEvent, names.split(), among={"entry_id": family}, where=f"kind IN ({kinds})"):
            found[event["entry_id"]].append({**event, "moment": _moment(event)})
        for merge in merges:
            for parent in merge["parents"]:
                if parent in family:
                    found[parent].append({**merge, "kind": "merge", "family": None, "moment": _moment(merge)})
        return {entry_id: sorted(listed, key=lambda event: event["moment"]) for entry_id, listed in found.items()}

    def _read_writings(self, tables: Tables) -> None:
        """Operations behind the events, their outputs, the weights that wrote those, the games they were made from."""
        listed = [event for events in self._events.values() for event in events if event["operation_id"]]
        rounds = {event["round"] for event in listed}

        def rows(row_type: type[Row], columns: str, key: str, values: Iterable[str]) -> Rows:
            """Rows of these rounds by one of their columns."""
            return tables.select(row_type, columns.split(), among={key: values}, rounds=rounds)

        columns = "operation_id distillation_id generation_id round kind episode_ids text embedder_cut"
        operations = rows(Operation, columns, "operation_id", [event["operation_id"] for event in listed])
        self._operations = {row["operation_id"]: row for row in operations}
        names = ("pairs", "wins_with", "wins_without", "difference", "admitted")
        trials = rows(Trial, f"operation_id tried_round {' '.join(names)}", "operation_id", self._operations)
        self._tried = {
            row["operation_id"]: Tried(row["tried_round"], **{name: row[name] for name in names}) for row in trials
        }
        generations = rows(
            Generation,
            f"generation_id {' '.join(_OF_OUTPUT)}",
            "generation_id",
            [row["generation_id"] for row in operations],
        )
        self._generations = {row["generation_id"]: row for row in generations}
        deleted = {each.location for each in pruned(tables.run_path)}
        # A stage that was redone has written its checkpoint again.
        self._pruned = {each for each in deleted if not (tables.run_path / each).is_dir()}
        digests = {row["weights_digest"] for row in generations}
        self._writers: dict[str, dict[str, Any]] = {}
        for row in tables.select(
            Weights, ["weights_digest", "checkpoint", "source", "updates"], among={"weights_digest": digests},
            where="role <> 'embedder'",
        ):  # fmt: skip
            self._writers.setdefault(row["weights_digest"], row)  # where they first appeared
        sources = {"episode_id": [episode_id for row in operations for episode_id in row["episode_ids"]]}
        self._sources = {
            row["episode_id"]: SourceEpisode(
                row["episode_id"], row["success"], row["goal"], ", ".join(row["entry_ids"]) or None
            )
            for row in tables.select(Episode, ["episode_id", "success", "goal", "entry_ids"], among=sources)
        }

    def _read_imports(self, tables: Tables) -> None:
        wanted = [
            event["entry_id"] for events in self._events.values() for event in events if event["kind"] == "import"
        ]
        of_source = ("experiment", "round", "snapshot", "entry_id", "family", "version")
        columns = ["entry_id", *(f"source_{name}" for name in of_source), "uses", "mean_outcome", "story"]
        self._imports = {
            entry_id: Import(*(*origin, json.loads(story)))
            for entry_id, *origin, story in (
                row.values() for row in tables.select(ImportedEntry, columns, among={"entry_id": wanted})
            )
        }
        columns = ["content_digest", "segment", "embedder_cut"]
        rows = tables.select(BankChange, columns, among={"entry_id": wanted}, rounds=[0])
        self._cuts = {row["content_digest"]: row["embedder_cut"] for row in rows}
        self._texts = load_texts(tables.run_path, pa.Table.from_pylist(rows)) if rows else {}

    def _read_uses(self, tables: Tables, family: set[str]) -> None:
        """Games and held-out games by the entry that guided them, or that was read for them (ERL), in order."""
        columns = ["episode_id", "round", "success", "entry_ids", "content_digests"]
        of_rounds = f"guided AND stream <> '{TRIAL}'"  # what a trial played is shown as one
        played = tables.select(Episode, columns, among={"entry_ids": family}, where=of_rounds)
        shown = {
            (row["episode_id"], entry_id): (digest, row)
            for row in played
            for entry_id, digest in zip(row["entry_ids"], row["content_digests"], strict=True)
        }
        columns = ["episode_id", "entry_id", "content_digest", "outcome", "free_mean", "guided_minus_free"]
        credits = _by_use(tables.select(Credit, columns, among={"entry_id": family}))
        read = {"episode_id": [episode_id for episode_id, entry_id in credits.keys() - shown.keys()]}
        games = {
            row["episode_id"]: row for row in tables.select(Episode, ["episode_id", "round", "success"], among=read)
        }
        shown |= {place: (credits[place]["content_digest"], games[place[0]]) for place in credits.keys() - shown.keys()}
        among = {"episode_id": [episode_id for episode_id, _ in shown]}
        columns = ["episode_id", "entry_id", "bank_round", "similarity"]
        rounds = {row["round"] for _, row in shown.values()}
        chosen = _by_use(tables.select(Retrieval, columns, among=among, where="chosen", rounds=rounds))
        self._uses: dict[str, list[tuple[int, str, Use]]] = defaultdict(list)
        for place, (digest, row) in sorted(shown.items(), key=lambda each: (each[1][1]["round"], each[0])):
            retrieval, credit = chosen.get(place, {}), credits.get(place, {})
            earned = (credit.get(name) for name in ("outcome", "free_mean", "guided_minus_free"))
            use = Use(row["episode_id"], row["round"], row["success"], retrieval.get("similarity"), *earned)
            self._uses[place[1]].append((retrieval.get("bank_round", row["round"] - 1), digest, use))
        self._evaluations: dict[str, list[EvaluationUse]] = defaultdict(list)
        columns = ["evaluation_id", "entry_ids", "round", "success"]
        evaluated = tables.select(Evaluation, columns, among={"entry_ids": family}, where="guided")
        for row in sorted(evaluated, key=lambda row: (row["round"], row["evaluation_id"])):
            for entry_id in row["entry_ids"]:
                self._evaluations[entry_id].append(EvaluationUse(row["evaluation_id"], row["round"], row["success"]))


def _with_ancestors(entry_ids: Iterable[str], merges: Rows) -> set[str]:
    parents: dict[str, list[str]] = defaultdict(list)
    for merge in merges:
        parents[merge["entry_id"]] += merge["parents"]
    found: set[str] = set()
    waiting = list(entry_ids)
    while waiting:
        entry_id = waiting.pop()
        if entry_id not in found:
            found.add(entry_id)
            waiting += parents[entry_id]
    return found


def _moment(event: Mapping[str, Any]) -> Moment:
    index = _INDEX.search(event["event_id"])
    return event["round"], int(index[1]) if index else 0


def _by_use(rows: Rows) -> dict[tuple[str, str], dict[str, Any]]:
    return {(row["episode_id"], row["entry_id"]): row for row in rows}


def _unknown(run_path: Path, entry_id: str, until: int | None) -> BadInput:
    import difflib

    with Tables(run_path, until) as tables:
        rows = tables.select(BankEvent, ["entry_id"], where="entry_id IS NOT NULL AND kind <> 'rejected'")
    known = sorted({row["entry_id"] for row in rows})
    close = difflib.get_close_matches(entry_id, known, n=3) or known[:3]
    round_option = "" if until is None else f" --round {until}"
    return BadInput(
        f"no experience {entry_id!r} was ever in the bank of {run_path}"
        + ("" if until is None else f" up to round {until}"),
        expected=f"an entry id, such as {', '.join(close)}" if close else "the bank has had no entry so far",
        next_step=f"`crl bank show {quoted(run_path)}{round_option}` lists them",
    )
