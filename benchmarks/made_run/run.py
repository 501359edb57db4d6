"""Writes the rounds, through the lease and the stage writer of the record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crl.bank.changes import Change, applied, stored
from crl.bank.consolidate import Rules, consolidate
from crl.bank.segments import new_segments, text_digest, with_files
from crl.bank.snapshot import Snapshot
from crl.config.load import load_experiment
from crl.records import (
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    Distillation,
    Operation,
    Retrieval,
    Weights,
    rows_of,
    schema_of,
    table_of,
)
from crl.rounds.provenance import TIMINGS
from crl.run.directory import RunDirectory
from crl.run.lease import Lease

from . import learn, play

_CONFIG = Path(__file__).parents[2] / "conf" / "tiny.yaml"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much there is of everything."""

    entries: int = 40
    """Imported in round 0."""
    changes: int = 20
    """Adds and updates per round, about."""
    merges: int = 2
    """Every third round."""
    capacity: int = 60
    """Entries of a family."""
    groups: int = 8
    members: int = 4
    candidates: int = 6
    tokens: int = 8
    seeds: int = 5
    """Held-out tasks of a family; every second round is evaluated."""


class _Embedder:
    dimension = 8

    def embed(self, texts: list[str]) -> np.ndarray:
        """Vectors [N, 8] of length 1 that depend on the text."""
        numbers = [int(text_digest(text)[:8], 16) for text in texts]
        vectors_ND = np.cos(np.outer(numbers, np.arange(1, self.dimension + 1) / 1e6))
        return (vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)).astype(np.float32)


class Made:
    """A run that is being made: what the next round builds on."""

    def __init__(self, run: RunDirectory, token: int, size: Size, seed: int) -> None:
        self.path, self._run, self._token, self._size = run.path, run, token, size
        self._rng = np.random.default_rng(seed)
        self._number = 0
        self._bank = Snapshot.of(0, [])
        self._summary: BankSnapshot | None = None
        self._texts: dict[str, str] = {}
        self._places: dict[str, tuple[str, str]] = {}
        self._uses = play.Uses({}, {}, [])
        self._outputs = learn.Outputs()
        self._limits = run.method.recipe.bank.model_copy(update={"capacity": size.capacity, "eviction": "least_useful"})
        self._begin_with_an_import()

    def round(self) -> int:
        """Write the next round. Returns its number."""
        self._number += 1
        number, size, rng = self._number, self._size, self._rng
        plan = play.plan(rng, number, size.groups, size.members, size.candidates, self._bank, self._uses)
        self._write(number, "plan", plan)
        collected = play.collect(rng, number, plan, self._texts, size.tokens)
        self._write(number, "collect", collected)
        episodes = collected[play.Episode]
        distilled = learn.distill(rng, number, self._bank, episodes, size.changes, size.tokens)
        self._write(number, "distill", distilled)
        operations = rows_of(Operation, distilled[Operation])
        made = distilled[Distillation]["generation_id"].to_pylist()
        if number % 3 == 0:
            touched = {each.entry_id for each in operations if each.entry_id}
            merged = learn.merge(rng, number, self._bank, touched, size.merges, size.tokens)
            self._write(number, "merge", merged)
            operations += rows_of(Operation, merged[Operation])
            made += merged[Distillation]["generation_id"].to_pylist()
        chosen = [row for row in plan[Retrieval].to_pylist() if row["chosen"]]
        writers = {row["episode_id"]: row["generation_id"] for row in chosen}
        credited = learn.credit(rng, number, episodes, writers, made, self._uses, self._outputs)
        scores = rows_of(learn.EntryScore, credited[learn.EntryScore])
        result = consolidate(self._bank, operations, scores, Rules(self._limits, 10_000), round=number)
        self._publish(number, "consolidate", result.changes, result.events, result.new_texts, {})
        self._write(number, "credit", credited)
        for role in ("actor", "extractor"):
            self._write(number, f"update_{role}", learn.update(rng, number, role))
        if number % 2 == 0:
            self._write(number, "evaluate", play.evaluate(rng, number, size.seeds))
        return number

    def _begin_with_an_import(self) -> None:
        texts = [f"Experience {index} from elsewhere: keep to the wall." for index in range(self._size.entries)]
        entries = [
            BankEntry(
                entry_id=f"e-r0000-i{index:06d}", family=play.FAMILIES[index % len(play.FAMILIES)],
                content_digest=text_digest(text), segment="", embedding_file="", version=1, created_round=0,
                updated_round=0, order=index, operation_id="", distillation_id="", generation_id="", episode_ids=[],
                parents=[], embedder_cut=False,
            )
            for index, text in enumerate(texts)
        ]  # fmt: skip
        events = [
            BankEvent(
                event_id=f"r0000-e{index}", round=0, kind="import", entry_id=entry.entry_id, family=entry.family,
                operation_id=None, before_digest=None, after_digest=entry.content_digest, parents=[], reason=None,
                repeats=None,
            )
            for index, entry in enumerate(entries)
        ]  # fmt: skip
        rows = [learn.weights(role, 0) for role in ("actor", "extractor")]
        changes = [Change(None, entry) for entry in sorted(entries, key=lambda each: each.entry_id)]
        new = {entry.content_digest: text for entry, text in zip(entries, texts, strict=True)}
        self._publish(0, "initialize", changes, events, new, {Weights: table_of(Weights, rows)})
        self._write(0, "evaluate", play.evaluate(self._rng, 0, self._size.seeds))

    def _publish(
        self, number: int, stage: str, changes: list[Change], events: Iterable[BankEvent], new: dict[str, str],
        beside: play.Tables,
    ) -> None:  # fmt: skip
        segments = new_segments([text for digest, text in new.items() if digest not in self._places], _Embedder())
        self._places |= dict.fromkeys(segments.digests, (segments.segment, segments.embedding_file))
        storage = stored(self._summary, with_files(changes, segments, self._places), round=number)
        self._bank = Snapshot(number, applied(self._bank.table, [storage.changes]))
        tables = {BankChange: storage.changes, BankSnapshot: table_of(BankSnapshot, [storage.summary]), **beside}
        if storage.base:
            tables[BankEntry] = self._bank.table
        tables[BankEvent] = table_of(BankEvent, events)
        self._write(number, stage, tables, segments.files)
        self._summary = storage.summary
        self._texts |= new

    def _write(self, number: int, stage: str, tables: play.Tables, shared: dict[str, bytes] | None = None) -> None:
        with self._run.begin(number, stage, token=self._token) as writer:
            for relative, content in (shared or {}).items():
                writer.share(relative, content)
            for row_type, table in tables.items():
                writer.write(row_type, table.cast(schema_of(row_type)))
            provenance = {"attempt": 1, TIMINGS: timings(number, stage)}
            writer.commit(inputs=[], method_digest=self._run.method_digest, seed=0, provenance=provenance)


def timings(number: int, stage: str) -> dict[str, dict[str, float]]:
    """Made-up times of what a stage does: one batch per round in training, two per evaluation."""
    works = {
        "plan": ("retrieval",),
        "collect": ("play",),
        "evaluate": ("retrieval", "play with_bank", "play without_bank"),
    }
    batches = 2 if stage == "evaluate" else 1
    return {
        work: {
            "batches": batches,
            "items": 8 * batches,
            "seconds": 0.25 * number + place,
            "longest": 0.2 * number + place,
        }
        for place, work in enumerate(works.get(stage, ()), start=1)
    }


@contextmanager
def writing(root: Path, size: Size, seed: int = 0) -> Iterator[Made]:
    """A run `root/tiny` with its round 0, to be continued round by round."""
    run = RunDirectory.create_or_open(load_experiment(_CONFIG, {}), root)
    with Lease.acquire(run.path, seconds=600) as lease:
        yield Made(run, lease.token, size, seed)


def make(root: Path, rounds: int, size: Size, seed: int = 0) -> Path:
    """A whole run. Returns its directory."""
    with writing(root, size, seed) as made:
        for _ in range(rounds):
            made.round()
        return made.path
