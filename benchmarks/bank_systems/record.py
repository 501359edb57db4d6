"""The project's own bank, through the real record: a leased run directory whose rounds publish banks.

Round 0 publishes the entries as an import does; a later round runs the stage `consolidate` on operations that a stage
before it left, as training does: it opens the bank of the round before, applies, and writes changes, summary, events,
texts and vectors. Left out are the models (vectors are given) and the data checks of the tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from bank_systems.base import Changes, Rows, bytes_below
from crl.bank.changes import Change
from crl.bank.segments import load_embeddings, new_segments, text_digest, with_files
from crl.bank.snapshot import Snapshot
from crl.config.load import load_experiment
from crl.records import BankEntry, EntryScore, Operation, Row, schema_of, table_of
from crl.rounds.context import StageContext
from crl.rounds.publish import publish
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.run.writer import StageWriter

_EXPERIMENT = Path(__file__).parents[2] / "conf" / "tiny.yaml"


class GivenVectors:
    """An embedder that looks vectors up."""

    def __init__(self, texts: Sequence[str], vectors_ND: NDArray[np.float32]) -> None:
        self.dimension = int(vectors_ND.shape[1])
        self._rows = {text: row for row, text in enumerate(texts)}
        self._vectors_ND = vectors_ND

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Vectors [len(texts), dimension]."""
        return self._vectors_ND[[self._rows[text] for text in texts]]


class _Services:
    """What the stage `consolidate` asks of the engine."""

    rank = 0

    def __init__(self, vectors: GivenVectors) -> None:
        self._vectors = vectors

    def embedder(self) -> GivenVectors:
        return self._vectors


class BankRun:
    """A run of the tiny experiment whose banks are given."""

    def __init__(self, root: Path, capacity: int) -> None:
        experiment = load_experiment(
            _EXPERIMENT, {"method.recipe.bank.capacity": str(capacity), "method.recipe.merge.every": "0"}
        )
        self.run = RunDirectory.create_or_open(experiment, root)
        self.recipe = recipe_of(self.run.method)
        self._lease: Lease | None = None

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path

    def publish_first(self, rows: Rows) -> None:
        """Round 0: every row is a new entry."""
        services = GivenVectors(rows.texts, rows.vectors_ND)
        with self.begin(0, "initialize") as writer:
            context = self.context(0, "initialize", writer, services)
            segments = new_segments(rows.texts, services)
            for relative, content in segments.files.items():
                context.share(relative, content)
            changes = [Change(None, entry) for entry in _entries(rows)]
            publish(context, schema_of(BankEntry).empty_table(), None, with_files(changes, segments, {}), [])
            self.commit(writer, context)

    def propose(self, round_number: int, changes: Changes) -> None:
        """What the extractor leaves for a round: operations, and the rows that the stages before would have written."""
        operations = list(_operations(round_number, changes))
        for stage, row_type, listed in (("distill", Operation, operations), ("credit", EntryScore, [])):
            with self.begin(round_number, stage) as writer:
                writer.write(row_type, table_of(row_type, cast(Iterable[Row], listed)))
                writer.commit(inputs=[], method_digest=self.run.method_digest, seed=0, provenance={})

    def consolidate(self, round_number: int, changes: Changes) -> None:
        """The stage itself."""
        texts = [*changes.updated.texts, *changes.added.texts]
        vectors = GivenVectors(texts, np.concatenate([changes.updated.vectors_ND, changes.added.vectors_ND]))
        stage = self.recipe.stage(self.run.method, round_number, "consolidate")
        with self.begin(round_number, "consolidate") as writer:
            context = self.context(round_number, "consolidate", writer, vectors)
            assert stage.run is not None
            stage.run(context)
            self.commit(writer, context)

    def bank(self, round_number: int) -> Snapshot:
        """The bank after a round."""
        return recorded_bank(self.run, self.recipe, round_number)

    def embeddings(self, bank: Snapshot) -> NDArray[np.float32]:
        """Vectors [N, D] of its entries."""
        return load_embeddings(self.path, bank.table)

    def bank_bytes(self, round_number: int) -> Mapping[str, int]:
        """Bytes on disk of a round's bank: tables and manifest, texts, vectors."""
        stage = "initialize" if round_number == 0 else "consolidate"
        manifest = self.run.manifest(round_number, stage)
        sizes = {"tables": bytes_below(self.run.stage_path(round_number, stage)), "texts": 0, "vectors": 0}
        for relative in manifest.digested.shared:
            kind = "texts" if relative.startswith("bank/segments/") else "vectors"
            sizes[kind] += (self.path / relative).stat().st_size
        return sizes

    def close(self) -> None:
        """Give the lease back."""
        if self._lease is not None:
            self._lease.release()
            self._lease = None

    def begin(self, round_number: int, stage: str) -> StageWriter:
        """A writer of a stage."""
        if self._lease is None:
            self._lease = Lease.acquire(self.path, seconds=600)
        return self.run.begin(round_number, stage, token=self._lease.token)

    def context(self, round_number: int, stage: str, writer: StageWriter, vectors: GivenVectors | None) -> StageContext:
        """What that stage sees; the vectors of its new texts are given."""
        return StageContext(
            method=self.run.method,
            recipe=self.recipe,
            stage=self.recipe.stage(self.run.method, round_number, stage),
            round_number=round_number,
            reader=self.run,
            writer=writer,
            services=cast(Any, _Services(vectors)),
            progress=lambda metrics: None,
        )

    def commit(self, writer: StageWriter, context: StageContext) -> None:
        """Make the stage part of the record."""
        writer.commit(
            inputs=sorted(context.inputs), method_digest=self.run.method_digest, seed=0, provenance=context.provenance
        )


def _entries(rows: Rows) -> Iterable[BankEntry]:
    for number, (entry_id, family, text) in enumerate(zip(rows.ids, rows.families, rows.texts, strict=True)):
        yield BankEntry(
            entry_id=entry_id, family=family, content_digest=text_digest(text), segment="", embedding_file="",
            version=1, created_round=0, updated_round=0, order=number, operation_id=f"{entry_id}-o0",
            distillation_id=entry_id, generation_id=f"g-{entry_id}", episode_ids=[f"r0000-{family}-g{number:06d}-m0"],
            parents=[], embedder_cut=False,
        )  # fmt: skip


def _operations(round_number: int, changes: Changes) -> Iterable[Operation]:
    asked = [("update", *each) for each in _listed(changes.updated)]
    asked += [("add", *each) for each in _listed(changes.added)]
    asked += [("drop", entry_id, family, None) for entry_id, family in changes.removed]
    for index, (kind, entry_id, family, text) in enumerate(asked):
        distillation = f"r{round_number:04d}-d{index:06d}"
        yield Operation(
            operation_id=f"{distillation}-o0", distillation_id=distillation, generation_id=f"g-{distillation}",
            round=round_number, index=0, kind=kind, family=family, entry_id=entry_id, parents=[],
            episode_ids=[f"r{round_number:04d}-{family}-g{index:06d}-m0"], text=text,
            embedder_cut=None if text is None else False,
        )  # fmt: skip


def _listed(rows: Rows) -> Iterable[tuple[str, str, str]]:
    return zip(rows.ids, rows.families, rows.texts, strict=True)
