"""A small run directory from rows, for tests of what reads one.

Two rounds of one family. `e1` is added in round 1 from a won and a lost episode, guides two episodes in round 2 (one
won) and is updated in round 2. The extractor is trained once, in round 1.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from crl.bank.changes import Change, stored
from crl.bank.segments import new_segments
from crl.records import (
    BankChange,
    BankEntry,
    BankEvent,
    BankSnapshot,
    BufferItem,
    Credit,
    Distillation,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Operation,
    Retrieval,
    Row,
    Weights,
    rows_of,
    table_of,
)
from crl.run.files import sha256_file
from crl.run.manifest import Digested, FileDigest, Manifest


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


OLD, NEW = "Go down the stairs.", "Avoid the trap, then take the stairs."


def episode(number: int, member: int, *, guided: bool, success: bool) -> Episode:
    return Episode(
        episode_id=f"r{number:04d}-room-g0000-m{member:03d}", round=number, family="room", group=0, member=member,
        environment_seed=7, guided=guided, entry_ids=["e1"] if guided else [],
        content_digests=[digest(OLD)] if guided else [], experiences=[OLD] if guided else [], goal="reach the stairs",
        success=success, reward=float(success), turns=3, invalid_actions=0,
        tokens_read=30 + 10 * guided, tokens_sampled=6 + member,
        stop_reason="success" if success else "turn_limit", last_observation="@ at the end", error=None,
        generation_ids=[f"g-r{number:04d}-m{member:03d}"],
    )  # fmt: skip


def generation(name: str, number: int, *, role: str = "extractor", prompt: str, output: str) -> Generation:
    return Generation(
        generation_id=name, round=number, stage="distill", role=role, kind="distill",
        weights_digest=f"{role}-{number - 1}", temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1],
        logprobs=[0.0, -0.5], prompt=prompt, output=output, stop_reason="end_of_turn",
    )  # fmt: skip


def distillation(number: int, index: int, *, verdict: str) -> Distillation:
    malformed = verdict == "malformed"
    return Distillation(
        distillation_id=f"r{number}-d{index}", round=number, kind="distill", family="room",
        episode_id=f"r{number:04d}-room-g0000-m{index:03d}", guiding_entry_id=None, source_entry_ids=[],
        generation_id=f"r{number}-d{index}", format="lines", reason_code="no_operation" if malformed else "ok",
        verdict=verdict, operations=0 if malformed else 1, turns=3, turns_shown=3,
    )  # fmt: skip


def operation(number: int, kind: str, text: str, parents: list[str]) -> Operation:
    return Operation(
        operation_id=f"r{number}-d0-o0", distillation_id=f"r{number}-d0", generation_id=f"r{number}-d0", round=number,
        index=0, kind=kind, family="room", entry_id="e1", parents=parents,
        episode_ids=[f"r{number:04d}-room-g0000-m000", f"r{number:04d}-room-g0000-m001"], text=text, embedder_cut=False,
    )  # fmt: skip


def event(number: int, kind: str, before: str | None, after: str) -> BankEvent:
    return BankEvent(
        event_id=f"r{number}-e0", round=number, kind=kind, entry_id="e1", family="room",
        operation_id=f"r{number}-d0-o0", before_digest=before and digest(before), after_digest=digest(after),
        parents=[], reason=None, repeats=None,
    )  # fmt: skip


class Embedder:
    dimension = 2

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[1.0, len(text)] for text in texts], np.float32)


def bank_entry(number: int, text: str, version: int) -> BankEntry:
    segments = new_segments([text], Embedder())
    return BankEntry(
        entry_id="e1", family="room", content_digest=digest(text), segment=segments.segment,
        embedding_file=segments.embedding_file, version=version, created_round=1, updated_round=number, order=0,
        operation_id=f"r{number}-d0-o0", distillation_id=f"r{number}-d0", generation_id=f"r{number}-d0",
        episode_ids=[], parents=[], embedder_cut=False,
    )  # fmt: skip


def bank_rows(
    number: int, before: BankSnapshot | None, changes: Sequence[Change], after: Sequence[BankEntry]
) -> list[list[Row]]:
    """What a round stores of its bank, which holds `after`, given the summary of the one before it."""
    storage = stored(before, changes, round=number)
    tables: list[list[Row]] = [[*rows_of(BankChange, storage.changes)], [storage.summary]]
    return [*tables, [*after]] if storage.base else tables


def weights(role: str, number: int, updates: int) -> Weights:
    return Weights(
        role=role, round=number, updates=updates, source="tiny", base_digest="b",
        checkpoint=f"rounds/{number:04d}/update_{role}/checkpoint" if updates else None,
        weights_digest=f"{role}-{number}",
    )  # fmt: skip


def retrieval(member: int, *, chosen: bool = True) -> Retrieval:
    return Retrieval(
        episode_id=f"r0002-room-g0000-m{member:03d}", round=2, bank_round=1, family="room", entry_id="e1",
        content_digest=digest(OLD), generation_id="r1-d0", rank=0, similarity=0.75, rank_score=0.0, count=member,
        recent=False, score=-0.1, chosen=chosen,
    )  # fmt: skip


def credit(member: int, outcome: float) -> Credit:
    return Credit(
        round=2, episode_id=f"r0002-room-g0000-m{member:03d}", entry_id="e1", content_digest=digest(OLD),
        generation_id="r1-d0", outcome=outcome, free_mean=-1.0, guided_minus_free=outcome + 1.0,
    )  # fmt: skip


def evaluation(number: int, condition: str, seed: int, success: bool) -> Evaluation:
    return Evaluation(
        evaluation_id=f"r{number}-{condition}-{seed}", round=number, condition=condition, family="room",
        environment_seed=seed,
        guided=condition == "with_bank", success=success, reward=float(success), turns=2, invalid_actions=0,
        tokens_read=0 if condition == "random" else 20, tokens_sampled=0 if condition == "random" else 4,
        stop_reason="success" if success else "turn_limit", actions=["east"],
    )  # fmt: skip


def buffer_item(name: str, status: str) -> BufferItem:
    return BufferItem(
        generation_id=name, generation_round=1, generation_stage="distill", kind="used", entered_round=2,
        entered_order=0, uses=2, score_sum=0.0, train_count=0, last_trained_round=None, status=status, reason=None,
    )  # fmt: skip


def stages() -> dict[tuple[int, str], list[list[Row]]]:
    """Rows of every stage of the run, a list a table."""
    added, updated = bank_entry(1, OLD, 1), bank_entry(2, NEW, 2)
    empty = stored(None, [], round=0).summary
    first = stored(empty, [Change(None, added)], round=1).summary
    return {
        (0, "initialize"): [[weights("actor", 0, 0), weights("extractor", 0, 0)], [empty]],
        (0, "evaluate_base"): [[evaluation(0, "without_bank", seed, False) for seed in (1, 2)]],
        (0, "evaluate"): [[evaluation(0, "without_bank", 1, True), evaluation(0, "without_bank", 2, False)]],
        (1, "collect"): [[episode(1, m, guided=False, success=m == 0) for m in range(4)]],
        (1, "distill"): [
            [distillation(1, 0, verdict="add"), distillation(1, 1, verdict="malformed")],
            [operation(1, "add", OLD, [])],
            [generation("r1-d0", 1, prompt="What was learned?", output=f"ADD: {OLD}")],
        ],
        (1, "consolidate"): [*bank_rows(1, empty, [Change(None, added)], [added]), [event(1, "add", None, OLD)]],
        (1, "update_actor"): [[weights("actor", 1, 1)]],
        (1, "update_extractor"): [[weights("extractor", 1, 1)]],
        (2, "plan"): [[retrieval(0), retrieval(1), retrieval(3, chosen=False)]],
        (2, "collect"): [
            [episode(2, 0, guided=True, success=True), episode(2, 1, guided=True, success=False),
             episode(2, 2, guided=False, success=False), episode(2, 3, guided=False, success=False)],
        ],
        (2, "distill"): [
            [distillation(2, 0, verdict="update")],
            [operation(2, "update", NEW, ["e1"])],
            [generation("r2-d0", 2, prompt="And now?", output=f"UPDATE: {NEW}")],
        ],
        (2, "consolidate"): [*bank_rows(2, first, [Change(added, updated)], [updated]), [event(2, "update", OLD, NEW)]],
        (2, "credit"): [
            [credit(0, 1.0), credit(1, -1.0)],
            [buffer_item("r1-d0", "waiting"), buffer_item("r0-x", "selected")],
            [Metric(round=2, stage="credit", name="share_malformed", value=0.5, alarm="more than 0.3 of the outputs")],
        ],
        (2, "update_extractor"): [[weights("extractor", 2, 1)]],
        (2, "evaluate"): [
            [evaluation(2, "with_bank", seed, True) for seed in (1, 2)]
            + [evaluation(2, "without_bank", seed, False) for seed in (1, 2)]
        ],
    }  # fmt: skip


def build_run(path: Path) -> Path:
    """Write the run directory."""
    shared = {}
    # A text may lie in more than one segment.
    for texts in ([OLD], [NEW], ["Both."], [OLD, "Both."]):
        for name, content in new_segments(texts, Embedder()).files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
            shared[name] = sha256_file(path / name)
    for (number, stage), tables in stages().items():
        write_stage(path, number, stage, tables, shared if stage == "consolidate" else None)
    return path


def write_stage(
    path: Path, number: int, stage: str, tables: Sequence[Sequence[Row]], shared: dict[str, str] | None = None
) -> None:
    """Write one committed stage."""
    directory = path / "rounds" / f"{number:04d}" / stage
    directory.mkdir(parents=True)
    files = {}
    typed: list[tuple[type[Row], Sequence[Row]]] = [(type(rows[0]), rows) for rows in tables]
    if any(row_type is BankSnapshot for row_type, _ in typed) and all(
        row_type is not BankChange for row_type, _ in typed
    ):
        typed.append((BankChange, []))  # a bank that nothing changed
    for row_type, rows in typed:
        file = directory / f"{row_type.table}.parquet"
        pq.write_table(table_of(row_type, rows), file)
        files[file.name] = FileDigest(sha256=sha256_file(file), bytes=file.stat().st_size, rows=len(rows))
    digested = Digested(stage=stage, round=number, files=files, shared=shared or {}, inputs={}, method="m", seed="0")
    provenance = {"seconds": 1.5, "sequence": len(list(directory.parent.iterdir()))}
    (directory / "manifest.json").write_bytes(Manifest.seal(digested, provenance).render())


def add_table(run: Path, stage: str, name: str, table: pa.Table) -> None:
    """One more table of a committed stage (`0001/plan`), named in its manifest as if the stage had written it."""
    directory = run / "rounds" / stage
    pq.write_table(table, directory / name)
    before = Manifest.load(directory)
    file = FileDigest(sha256=sha256_file(directory / name), bytes=(directory / name).stat().st_size, rows=len(table))
    digested = before.digested.model_copy(update={"files": {**before.digested.files, name: file}})
    (directory / "manifest.json").write_bytes(Manifest.seal(digested, before.provenance).render())


def share_weights(run: Path) -> None:
    """Have the extractor's weights be those of the actor: `weights.role` is the role that owns them."""
    for path in run.glob("rounds/*/*/weights.parquet"):
        rows = rows_of(Weights, pq.read_table(path))
        owned = [dataclasses.replace(row, role="actor") for row in rows if row.role == "extractor"]
        pq.write_table(table_of(Weights, owned), path)
