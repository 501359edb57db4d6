"""A bank of a million entries: opening, retrieval with eq. 6, recall, consolidation and publishing, peak memory.

    python benchmarks/bank_scale.py [--data DIRECTORY] [--entries 1000000] [--operations 10000] [--batches 60]

Everything goes through the real record and the code that stages run. Round 0 publishes the entries, in ten files; round
1 applies `--operations` (half updates, a quarter adds, a quarter drops) in the stage `consolidate`, new texts, vectors
and the sync of the files included. Each row of the table is a process of its own, so that its peak memory is its own:

- *first*: the retriever of the stage `plan` opened without a cache, then batches of 32 queries: from query vectors to
  retrieval rows, re-ranked by eq. 6 with counters that advance. The scope is the whole bank.
- *again*: opened with the cache that the first left. *next round*: opened on the bank of round 1.
- *exact*: the same queries in exact search, which recall@16 is counted against.

DIRECTORY is one that `bank_data.py` fills with real texts, their embeddings and held-out queries; what goes beyond them
is mixed from two of them with noise. Without it vectors are made up, in clusters.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
from bank_systems.base import Rows
from bank_systems.data import FAMILIES, Source
from bank_systems.record import BankRun, GivenVectors
from made_run.columns import columns

from crl.bank.retrieve import BankRetriever
from crl.bank.segments import new_segments, text_digest
from crl.bank.snapshot import Snapshot, add_digests, row_digest
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.plan import open_retriever
from crl.records import BankChange, BankEntry, BankEvent, BankSnapshot, schema_of
from crl.rounds.context import StageContext
from crl.run.cache import clear

BATCH, COUNT = 32, 16
_FILES = 10
_SETTINGS = {"method.recipe.retrieval.scope": "bank"}


@dataclass
class Row:
    """What one process measured; seconds but for `batches` (milliseconds) and `gigabytes`."""

    name: str
    open_bank: float = 0.0
    open_vectors: float = 0.0
    open_index: float = 0.0
    batches: list[float] = field(default_factory=list)
    found: list[list[str]] = field(default_factory=list)
    apply: float = 0.0
    publish: float = 0.0
    gigabytes: float = 0.0


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument(
        "--root", type=Path, help="where the run is made, and left; made and deleted elsewhere if absent"
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.root or Path(temporary)
        if not (root / "tiny").exists():
            apart(make, root, arguments.data, arguments.entries, arguments.operations)
        queries = np.load(root / "queries.npy")[: arguments.batches * BATCH]
        print(f"{arguments.entries:,} entries; {len(queries)} queries; load {os.getloadavg()[0]:.1f}", flush=True)
        clear(root / "tiny")
        exact = apart(search, "exact", root, 0, queries, "exact")
        rows = [apart(search, name, root, 0, queries, "auto") for name in ("first", "again")]
        show(rows, exact)
        show([exact], exact)
        print_consolidation(apart(consolidate, root))
        show([apart(search, "next round", root, 1, queries, "auto")], None)


def show(rows: list[Row], exact: Row | None) -> None:
    """Print one line per row."""
    for row in rows:
        recall = "" if exact is None else f"recall@{COUNT} {recall_of(row, exact):.4f}, "
        print(
            f"{row.name:12} open {row.open_bank + row.open_vectors + row.open_index:.1f} s (bank {row.open_bank:.1f}, "
            f"vectors {row.open_vectors:.1f}, index {row.open_index:.1f}); batch of {BATCH}: {recall}"
            f"p50 {statistics.median(row.batches):.1f} ms, p95 {float(np.quantile(row.batches, 0.95)):.1f} ms; "
            f"peak {row.gigabytes:.2f} GB",
            flush=True,
        )


def print_consolidation(row: Row) -> None:
    """The stage `consolidate`."""
    print(f"{row.name:12} opening the bank {row.open_bank:.1f} s, applying {row.apply:.1f} s, publishing "
          f"{row.publish:.1f} s; peak {row.gigabytes:.2f} GB", flush=True)  # fmt: skip


def recall_of(row: Row, exact: Row) -> float:
    """Share of the exact answers that were found."""
    hits = [len(set(found) & set(right)) for found, right in zip(row.found, exact.found, strict=True)]
    return sum(hits) / sum(len(right) for right in exact.found)


def apart(measure: Callable[..., Any], *arguments: Any) -> Any:
    """Run in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def search(name: str, root: Path, round_number: int, queries_QD: np.ndarray, index: str) -> Row:
    """Open the bank of a round as the stage `plan` of the next one does, and retrieve in batches."""
    row = Row(name)
    context = plan_context(root, round_number + 1, index)
    began = time.perf_counter()
    bank = context.bank()
    row.open_bank = time.perf_counter() - began
    retriever = timed(row, "open_vectors", lambda: open_retriever(context, bank, [], training=True))
    family = "family-0"
    timed(row, "open_index", lambda: batch(retriever, family, 0, queries_QD[:1], advance=False))
    for at in range(0, len(queries_QD), BATCH):
        asked_BD = queries_QD[at : at + BATCH]
        began = time.perf_counter()
        found = batch(retriever, family, at, asked_BD, advance=True)
        row.batches.append((time.perf_counter() - began) * 1e3)
        row.found += [[each.entry_id for each in candidates] for candidates in found]
    row.gigabytes = peak()
    return row


def batch(retriever: BankRetriever, family: str, first: int, queries_BD: np.ndarray, *, advance: bool) -> Any:
    """One batch of episodes of a family."""
    episodes = [(f"episode-{first + number}", family) for number in range(len(queries_BD))]
    return retriever.retrieve_many(episodes, queries_BD, advance=advance)


def plan_context(root: Path, round_number: int, index: str) -> StageContext:
    """What the stage `plan` of a round sees; it writes nothing here."""
    run = open_run(root)
    recipe = config_of(run.run.method)
    retrieval = recipe.retrieval.model_copy(update={"index": index, "scope": "bank", "candidates": COUNT})
    return StageContext(
        method=run.run.method.model_copy(update={"recipe": recipe.model_copy(update={"retrieval": retrieval})}),
        recipe=run.recipe,
        stage=run.recipe.stage(run.run.method, round_number, "plan"),
        round_number=round_number,
        reader=run.run,
        writer=cast(Any, None),
        services=cast(Any, None),
        progress=lambda metrics: None,
    )


def consolidate(root: Path) -> Row:
    """The stage `consolidate` of round 1."""
    import crl.rounds.publish as stage
    from crl.rounds.proposal import Proposal

    row, run, given = Row("consolidate"), open_run(root), np.load(root / "changes.npz")
    texts = json.loads((root / "changes.json").read_text(encoding="utf-8"))
    services = GivenVectors(texts, given["vectors"])
    with run.begin(1, "consolidate") as writer:
        context = run.context(1, "consolidate", writer, services)
        bank, applied = context.bank, Proposal.applied
        context.bank = lambda: timed(row, "open_bank", bank)  # type: ignore[method-assign]
        Proposal.applied = lambda *asked: timed(row, "apply", lambda: applied(*asked))  # type: ignore[method-assign]
        began = time.perf_counter()
        stage.consolidate(context)
        run.commit(writer, context)
        row.publish = time.perf_counter() - began - row.open_bank - row.apply
    run.close()
    row.gigabytes = peak()
    return row


def make(root: Path, data: Path | None, entries: int, operations: int) -> None:
    """The run with its first bank, the operations of round 1, the queries."""
    source, run, table, digest = Source(data), open_run(root), [], "0"
    with run.begin(0, "initialize") as writer:
        for number in range(_FILES):
            rows = source.rows(entries // _FILES)
            segments = new_segments(rows.texts, GivenVectors(rows.texts, rows.vectors_ND))
            for relative, content in segments.files.items():
                writer.share(relative, content)
            table.append(entry_table(rows, number * len(rows), segments.segment, segments.embedding_file))
            digest = add_digests(digest, added=map(row_digest, Snapshot(0, table[-1]).entries()))
        whole = pa.concat_tables(table).combine_chunks()
        changes = whole.append_column("removed", pa.repeat(False, whole.num_rows))
        summary = BankSnapshot(round=0, entries=whole.num_rows, changed=whole.num_rows, removed=0, base_round=0,
                               changes_since_base=0, digest=digest)  # fmt: skip
        context = run.context(0, "initialize", writer, None)
        context.write_table(BankChange, changes)
        context.write_table(BankEntry, whole)
        context.write(BankSnapshot, [summary])
        context.write(BankEvent, [])
        run.commit(writer, context)
    present = dict(zip(whole["entry_id"].to_pylist(), whole["family"].to_pylist(), strict=True))
    changed = source.changes(present, operations / entries)
    run.propose(1, changed)
    run.close()
    np.save(root / "queries.npy", source.queries_QD)
    np.savez(root / "changes.npz", vectors=np.concatenate([changed.updated.vectors_ND, changed.added.vectors_ND]))
    texts = [*changed.updated.texts, *changed.added.texts]
    (root / "changes.json").write_text(json.dumps(texts), encoding="utf-8")


def entry_table(rows: Rows, first: int, segment: str, embedding_file: str) -> pa.Table:
    """Rows of `BankEntry` of new entries."""
    count = len(rows)
    return columns(
        BankEntry, count, entry_id=rows.ids, family=rows.families,
        content_digest=[text_digest(text) for text in rows.texts], segment=segment, embedding_file=embedding_file,
        version=1, created_round=0, updated_round=0, order=np.arange(first, first + count),
        operation_id=[f"{name}-o0" for name in rows.ids], distillation_id=rows.ids,
        generation_id=[f"g-{name}" for name in rows.ids],
        episode_ids=[[f"r0000-family-{number % FAMILIES}-g{number:06d}-m0"] for number in range(first, first + count)],
        parents=[[] for _ in range(count)], embedder_cut=False,
    ).cast(schema_of(BankEntry))  # fmt: skip


def open_run(root: Path) -> BankRun:
    """The run, made where there is none; no family ever is full."""
    return BankRun(root, capacity=10_000_000)


def timed(row: Row, name: str, work: Callable[[], Any]) -> Any:
    """What `work` returns; its seconds go into a field of the row."""
    began = time.perf_counter()
    result = work()
    setattr(row, name, time.perf_counter() - began)
    return result


def peak() -> float:
    """Largest resident memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


if __name__ == "__main__":
    main()
