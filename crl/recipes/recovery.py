"""Making files of the record again from what they were made from, each proven before it is used.

A stage that needs neither a language model nor a person is a function of rows that are recorded elsewhere: the bank's
changes follow from the operations, the scores and the bank before; its texts are in the operations; its vectors are
the embedder's. Such a stage is run again in memory, and a file counts only if its SHA-256 is the one in the manifest
(or in its own name); where the manifest itself is gone, if the digest of the whole stage is the one that a later stage
read.

Readers of one round use this while a file of another is damaged; `crl mend` uses it to put files back. Nothing is
written here.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from crl.bank.segments import EMBEDDINGS, text_digest
from crl.errors import CrlError, RecordDamaged
from crl.protocols import Embedder, Services
from crl.recipes.context import StageContext
from crl.recipes.stage import Recipe
from crl.records import BankChange, BankEntry, Row, Weights, rows_of, vectors_of
from crl.run.directory import RunDirectory, complete_stages, round_numbers
from crl.run.files import sha256_bytes, sha256_file
from crl.run.imports import IMPORTS
from crl.run.manifest import Digested, FileDigest, key_of, parse_key
from crl.run.seeds import stage_seed_words
from crl.run.writer import conforming, parquet_bytes

_log = logging.getLogger(__name__)


@dataclass
class Remade:
    """What running a stage again came to."""

    digested: Digested
    files: dict[str, bytes] = field(default_factory=dict)
    """Content by run-relative path, files outside the stage (texts, vectors) included."""


class Recovery:
    """Reads a run's tables as :class:`RunDirectory` does, making again what is damaged."""

    def __init__(self, run: RunDirectory, recipe: Recipe, services: Services | None = None) -> None:
        """`services` are asked for what the record does not hold (vectors that are lost); None: only the record is."""
        self.run, self.recipe = run, recipe
        self._services = _Recorded(run, services)
        self._remade: dict[tuple[int, str], Remade] = {}
        self._readers: dict[str, set[str]] | None = None

    @property
    def path(self) -> Path:
        """The run directory."""
        return self.run.path

    def read(self, round_number: int, stage: str, row_type: type[Row]) -> pa.Table:
        """Rows of a complete stage, from its file or made again. Raises RecordDamaged where neither can be."""
        try:
            return self.run.read(round_number, stage, row_type)
        except RecordDamaged as damage:
            relative = f"rounds/{key_of(round_number, stage)}/{row_type.table}.parquet"
            content = self._instead(relative, damage)
            return pq.read_table(pa.BufferReader(content))

    def shared(self, relative: str, damage: RecordDamaged) -> bytes:
        """Content of a damaged file of texts or vectors. Raises `damage` where it cannot be made again."""
        return self._instead(relative, damage)

    def content(self, relative: str) -> bytes:
        """Content of a file by its run-relative path, made again and proven.

        Raises RecordDamaged where it does not follow from the rest of the record, or what it follows from is damaged.
        """
        if relative.startswith(f"{IMPORTS}/"):
            return self._import(relative)
        places = self._places(relative)
        for place in places:
            remade = self.remade(*place)
            if relative in remade.files:
                return remade.files[relative]
        if places:
            raise RecordDamaged(
                f"{relative}, made again, has other bytes than it had",
                expected="the versions of crl, pyarrow and numpy that its manifest names",
            )
        raise RecordDamaged(
            f"{relative} does not follow from the rest of the record", expected="a file of a stage without a model"
        )

    def remade(self, round_number: int, stage: str) -> Remade:
        """The files of a stage, made again; only those that are proven. Raises RecordDamaged."""
        place = (round_number, stage)
        if place not in self._remade:
            self._remade[place] = self._proven(*place, self._run_again(*place))
        return self._remade[place]

    def _import(self, relative: str) -> bytes:
        """The bank that the experiment began with: no stage wrote it, but round 0 holds all of it."""
        from crl.recipes.imported import import_again

        made = import_again(self.run)
        if made.relative != relative:
            raise RecordDamaged(
                f"{relative}, made again, has digest {made.digest}",
                expected=Path(relative).stem,
                next_step="import the same bank again: `crl bank import` puts the file back",
            )
        return made.content

    def _run_again(self, round_number: int, name: str) -> Remade:
        stage = self.recipe.stage(self.run.method, round_number, name)
        if stage.run is None or not stage.from_rows:
            raise RecordDamaged(
                f"stage {name} of round {round_number} needs a model or a person: it cannot be made again from rows",
                next_step=f"crl redo {self.run.path} --from {key_of(round_number, name)}",
            )
        writer = _Memory(f"round {round_number}, stage {name}")
        context = StageContext(
            method=self.run.method,
            recipe=self.recipe,
            stage=stage,
            round_number=round_number,
            reader=self,
            writer=writer,
            services=cast(Services, self._services),
            progress=lambda figures: None,
        )
        stage.run(context)
        inputs = {key_of(*place): self._digest(*place) for place in sorted(context.inputs)}
        digested = Digested(
            stage=name,
            round=round_number,
            files=dict(sorted(writer.digests.items())),
            shared={relative: sha256_bytes(content) for relative, content in sorted(writer.shared.items())},
            inputs=inputs,
            method=self.run.method_digest,
            seed=stage_seed_words(self.run.method.seed, round_number, name),
        )
        directory = f"rounds/{key_of(round_number, name)}"
        files = {f"{directory}/{file}": content for file, content in writer.files.items()}
        return Remade(digested, {**files, **writer.shared})

    def _proven(self, round_number: int, stage: str, made: Remade) -> Remade:
        key = key_of(round_number, stage)
        try:
            recorded = self.run.manifest(round_number, stage).digested
        except RecordDamaged as damage:
            if made.digested.digest() not in self._read_as(key):
                raise RecordDamaged(
                    f"stage {key}, made again, has digest {made.digested.digest()}, and nothing says that it is right",
                    expected="a later stage that read it with this digest, or its manifest",
                    where=key,
                ) from damage
            return made
        known = {f"rounds/{key}/{name}": file.sha256 for name, file in recorded.files.items()} | recorded.shared
        return Remade(
            made.digested,
            {name: content for name, content in made.files.items() if known.get(name) == sha256_bytes(content)},
        )

    def _digest(self, round_number: int, stage: str) -> str:
        try:
            return self.run.manifest(round_number, stage).digest
        except RecordDamaged:
            return self.remade(round_number, stage).digested.digest()

    def _instead(self, relative: str, damage: RecordDamaged) -> bytes:
        try:
            content = self.content(relative)
        except CrlError as error:
            raise damage from error
        _warn(self.run.path, relative, damage.found)
        return content

    def _places(self, relative: str) -> list[tuple[int, str]]:
        """Stages that wrote a file: of a file that several rounds share, the first one."""
        parts = relative.split("/")
        if parts[0] == "rounds" and len(parts) > 3:
            place = parse_key("/".join(parts[1:3]))
            return [place] if self._from_rows(*place) else []
        found, unknown = [], []
        for number in round_numbers(self.run.path):
            for stage in complete_stages(self.run.path, number):
                if not self._from_rows(number, stage):
                    continue
                try:
                    if relative in self.run.manifest(number, stage).digested.shared:
                        found.append((number, stage))
                except RecordDamaged:
                    unknown.append((number, stage))
        return [*found, *unknown]

    def _from_rows(self, round_number: int, stage: str) -> bool:
        return self.recipe.from_rows(self.run.method, round_number, stage)

    def _read_as(self, key: str) -> set[str]:
        """Digests under which other stages read a stage."""
        if self._readers is None:
            self._readers = {}
            for number in round_numbers(self.run.path):
                for stage in complete_stages(self.run.path, number):
                    try:
                        inputs = self.run.manifest(number, stage).digested.inputs
                    except RecordDamaged:
                        continue
                    for read, digest in inputs.items():
                        self._readers.setdefault(read, set()).add(digest)
        return self._readers.get(key, set())


@cache  # a command reads a bank many times: a file is told of once in a process
def _warn(run_path: Path, relative: str, found: str) -> None:
    _log.warning(
        "%s is damaged (%s); what it held was made again for this reading, `crl mend %s` puts it back",
        relative, found, run_path,
    )  # fmt: skip


class _Memory:
    """A writer that keeps what a stage writes."""

    def __init__(self, where: str) -> None:
        self._where = where
        self.files: dict[str, bytes] = {}
        self.digests: dict[str, FileDigest] = {}
        self.shared: dict[str, bytes] = {}

    @property
    def directory(self) -> Path:
        raise RecordDamaged(f"{self._where} writes files that are no tables: they cannot be made again from rows")

    def write(self, row_type: type[Row], table: pa.Table) -> None:
        written = conforming(row_type, table, self._where)
        content = parquet_bytes(written)
        name = f"{row_type.table}.parquet"
        self.files[name] = content
        self.digests[name] = FileDigest(sha256=sha256_bytes(content), bytes=len(content), rows=written.num_rows)

    def share(self, relative: str, content: bytes) -> None:
        self.shared[relative] = content


class _Recorded:
    """The services that the record can stand in for; the rest is the engine's."""

    rank = 0

    def __init__(self, run: RunDirectory, services: Services | None) -> None:
        self._run, self._given = run, services

    def embedder(self) -> Embedder:
        return cast(Embedder, _RecordedVectors(self._run.path, self._given))

    def model_digest(self, role: str) -> str:
        # Read without its manifest, which may be what is damaged: what is made of it is proven as a whole.
        path = self._run.stage_path(0, "initialise") / f"{Weights.table}.parquet"
        try:
            return next(row.base_digest for row in rows_of(Weights, pq.read_table(path)) if row.role == role)
        except (OSError, pa.ArrowException, KeyError, StopIteration):
            return self._engine("the digest of a model").model_digest(role)

    def environment(self, family: str) -> Any:
        return self._engine("an environment").environment(family)

    def policy(self, role: str, weights: Weights) -> NoReturn:
        raise AssertionError("stages that need a model are not made again")

    trainer = trained = model_path = policy

    def _engine(self, what: str) -> Services:
        if self._given is None:
            raise RecordDamaged(f"{what} is not part of the record", next_step=f"crl mend {self._run.path}")
        return self._given


class _RecordedVectors:
    """Vectors that lie in the store; those that do not come from the run's embedder."""

    def __init__(self, run_path: Path, services: Services | None) -> None:
        self._run_path, self._services = run_path, services
        self.dimension = 0

    def embed(self, texts: Sequence[str]) -> NDArray[np.float32]:
        digests = [text_digest(text) for text in texts]
        found = self._stored(set(digests))
        missing = [text for text, digest in zip(texts, digests, strict=True) if digest not in found]
        if missing and self._services is None:
            raise RecordDamaged(
                f"the vectors of {len(missing)} texts are lost",
                next_step=f"crl mend {self._run_path} embeds them again",
            )
        if missing and self._services is not None:
            vectors_MD = self._services.embedder().embed(missing)
            found |= {text_digest(text): vector_D for text, vector_D in zip(missing, vectors_MD, strict=True)}
        stacked = np.stack([found[digest] for digest in digests])
        self.dimension = int(stacked.shape[1])
        return stacked

    def cuts(self, texts: Sequence[str]) -> list[bool]:
        """As the rows of any bank of the record say it, which repeat it as long as a text is held."""
        known = self._recorded_cuts()
        digests = [text_digest(text) for text in texts]
        missing = [text for text, digest in zip(texts, digests, strict=True) if digest not in known]
        if missing and self._services is None:
            raise RecordDamaged(
                f"nothing says of {len(missing)} texts whether the embedder reads all of them",
                next_step=f"crl mend {self._run_path} asks it again",
            )
        if missing and self._services is not None:
            found = self._services.embedder().cuts(missing)
            known |= {text_digest(text): cut for text, cut in zip(missing, found, strict=True)}
        return [known[digest] for digest in digests]

    def _recorded_cuts(self) -> dict[str, bool]:
        known: dict[str, bool] = {}
        for row_type in (BankEntry, BankChange):
            for path in sorted((self._run_path / "rounds").glob(f"*/*/{row_type.table}.parquet")):
                try:
                    held = pq.read_table(path, columns=["content_digest", "embedder_cut"]).to_pydict()
                except (OSError, pa.ArrowException, KeyError):
                    continue
                known |= dict(zip(held["content_digest"], held["embedder_cut"], strict=True))
        return known

    def _stored(self, wanted: set[str]) -> dict[str, NDArray[np.float32]]:
        found: dict[str, NDArray[np.float32]] = {}
        for path in sorted((self._run_path / EMBEDDINGS).glob("*.parquet")):
            if len(found) == len(wanted):
                break
            try:
                if sha256_file(path) != path.stem:
                    continue
                held = pq.read_table(path, columns=["content_digest"])["content_digest"].to_pylist()
                rows = [row for row, digest in enumerate(held) if digest in wanted and digest not in found]
                if rows:
                    values_ND = vectors_of(pq.read_table(path, columns=["embedding"])["embedding"])
                    found |= {held[row]: values_ND[row] for row in rows}
            except (OSError, pa.ArrowException):
                continue
        return found
