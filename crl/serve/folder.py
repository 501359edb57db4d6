"""An exported agent, read back: the folder that `crl export` wrote (`export.py`).

It comes from anywhere, so nothing in it is believed: files are held against what `experience.json` says of them, the
bank is checked from end to end, and nothing in it names code. Its method is read without classes of others; an
environment of it can be played if it is one of the library's own, which read no file and run no program.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from crl.bank.retrieve import BankRetriever
from crl.bank.snapshot import Snapshot
from crl.config import RECIPES, Method
from crl.config.environments import ENVIRONMENTS, EnvironmentConfig
from crl.engine.services import prepare_environment
from crl.envs import make_environment
from crl.errors import BadInput, OtherFormat
from crl.limits import MOST_EPISODES, read_limited
from crl.paths import quoted
from crl.policies import load_policy
from crl.policies.embedders import EMBEDDERS, embedder_of_vectors
from crl.policies.hub import HUB_ID
from crl.policies.machine import settle_torch
from crl.policies.sources import resolve_model, trained_weights
from crl.policies.untrusted import tried
from crl.protocols import Embedder, Environment, LoadedPolicy, Policy
from crl.recipes.complementary.plan import retrieval_of
from crl.records import RECORD_FORMAT, Evaluation, RetrievalCount, Weights, rows_with, vectors_of
from crl.report.bank import ShownEntry
from crl.rounds.proposal import partitions_of
from crl.run.files import sha256_file
from crl.run.imports import EMBEDDING
from crl.transfer.folder import is_export, read_folder
from crl.transfer.gather import ExportedEntry, Gathered
from crl.transfer.schema import strict_json

DESCRIPTION, BANK, PROMPTS, CARD = "experience.json", "bank", "prompts", "README.md"
EPISODES = f"{Evaluation.table}.parquet"
FORMAT = "complementary-rl agent"
_AGAIN = "export the agent again: `crl export RUN --to FOLDER`"


class _Plain(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class WrittenFile(_Plain):
    """A file of the folder."""

    sha256: str
    bytes: int


class AgentEmbedder(_Plain):
    """The embedder that made the bank's vectors."""

    name: str
    digest: str


class HeldOut(_Plain):
    """The held-out episodes of the round, which are in the folder (`held_out.py`)."""

    episodes: int = Field(ge=1, le=MOST_EPISODES)
    digest: str
    """Of the episodes: :func:`crl.serve.held_out.digest_of`."""
    processor: str | None
    """What computed the model that played them; None where nobody noted it. Likewise below."""
    torch: str | None
    """Its version."""


class Description(_Plain):
    """`experience.json`."""

    format: Literal["complementary-rl agent"]
    format_version: int
    experiment: str = Field(max_length=200)
    round: int = Field(ge=0)
    digest: str
    role: str
    kind: Literal["full", "adapter", "merged", "base"]
    source: str
    base_digest: str
    weights_digest: str
    updates: int
    embedder: AgentEmbedder | None
    """Of the bank that games are guided by; None where none are."""
    counts: list[tuple[str, int, int]] = []
    """Entry, times chosen in training, round of the last choice (`RetrievalCount`)."""
    suppressed: list[tuple[str, str]] = []
    """Task family, and the digest of a text that is passed over for it."""
    evaluation: HeldOut | None = None
    """None where the round was not evaluated, and for a role that plays no games."""
    method: dict[str, Any]
    files: dict[str, WrittenFile]


class ElsewhereEnvironment(EnvironmentConfig):
    """An environment that the folder only names: it runs programs, reads files, or is code of somebody's."""

    def make(self) -> Any:
        raise BadInput(
            f"the environment {self.kind!r} cannot be made from an exported folder",
            expected=f"one of {', '.join(ENVIRONMENTS.built_in())}, or the run itself",
            next_step="open the run that the agent was exported from",
        )


def is_agent(path: Path) -> bool:
    """Whether a folder looks like an exported agent."""
    return (path / DESCRIPTION).is_file()


def foreign_method(plain: dict[str, Any]) -> Method:
    """A method that somebody else wrote, with no class but the library's own and those of installed packages.

    Raises BadInput.
    """
    try:
        kind = plain["recipe"]["kind"]
        if kind not in RECIPES.names():
            raise BadInput(
                f"the recipe {str(kind)[:60]!r} is not installed here",
                expected=f"one of {', '.join(RECIPES.names())}",
                next_step="install the package that brings it",
            )
        families = [{**family, "environment": _environment(family["environment"])} for family in plain["families"]]
        roles = {name: {**role, "engine": {"kind": "transformers"}} for name, role in plain["roles"].items()}
        for role in roles.values():  # what belongs to the owner of the weights is set there alone
            if role.get("weights") is not None or role.get("base") is not None:
                del role["engine"]
        found = Method.model_validate({**plain, "families": families, "roles": roles})
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        told = str(error) if isinstance(error, ValidationError) else repr(error)
        raise BadInput(f"its method cannot be read: {told}", next_step=_AGAIN) from None
    for name, config in found.roles.items():
        if config.chat_template is not None and (problem := tried(config.chat_template)) is not None:
            raise BadInput(f"role {name} cannot be used: {problem}", next_step=_AGAIN)
    return found


def _environment(settings: dict[str, Any]) -> Any:
    if settings["kind"] in ENVIRONMENTS.built_in():
        return settings
    return ElsewhereEnvironment(kind=str(settings["kind"]), held_out_from=settings.get("held_out_from"))


def described(folder: Path) -> Description:
    """What a folder says of itself, after a look at all its files. Raises BadInput, OtherFormat."""
    where = folder / DESCRIPTION
    try:
        plain = strict_json(read_limited(where).decode("utf-8"))
        if isinstance(plain, dict) and plain.get("format") == FORMAT and plain.get("format_version") != RECORD_FORMAT:
            raise OtherFormat(
                f"{folder} was exported in format {plain.get('format_version')}",
                expected=f"format {RECORD_FORMAT}",
                next_step="export it again with this version, or use the one that wrote it",
            )
        found = Description.model_validate(plain)
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(
            f"{DESCRIPTION} of {folder} cannot be read: {error}", where=str(where), next_step=_AGAIN
        ) from None
    for name, file in found.files.items():
        _check_file(folder, name, file)
    return found


def _check_file(folder: Path, name: str, file: WrittenFile, *, weights: bool = False) -> None:
    """Raise BadInput where a file is not what was written. Of weights the size is compared, and with `weights` all."""
    path, named = folder / name, PurePosixPath(name)
    inside = not named.is_absolute() and ".." not in named.parts  # a link, as the Hub's cache has, may lead elsewhere
    try:
        size = path.stat().st_size if inside and path.is_file() else None
        sized = path.suffix == ".safetensors" and not weights
        same = size == file.bytes and (sized or sha256_file(path) == file.sha256)
    except OSError:
        size, same = None, False
    if not same:
        raise BadInput(
            f"{name} of the exported agent is not what was written: "
            + ("no such file" if size is None else f"{size} bytes"),
            expected=f"{file.bytes} bytes, SHA-256 {file.sha256}",
            where=str(path),
            next_step="copy or download the folder once more, or " + _AGAIN,
        )


def same_base(name: str, digest: str) -> Path:
    """Folder of a base model. Raises BadInput where it cannot be had here, or is another one than was trained from."""
    source = resolve_model(name)
    if source.digest != digest:
        raise BadInput(
            f"the base model {name!r} has digest {source.digest}",
            expected=f"{digest}, as when training began",
            where=str(source.path),
            next_step="restore the base model's files",
        )
    return source.path


class OfFolder:
    """An exported agent as the origin of a :class:`crl.serve.source.TrainedAgent`."""

    def __init__(self, folder: Path) -> None:
        self._told = described(folder)
        self.path, self.name, self.round = folder, self._told.experiment, self._told.round
        self.method = foreign_method(self._told.method)

    @property
    def role(self) -> str:
        """The role whose weights the folder has."""
        return self._told.role

    @property
    def evaluation(self) -> HeldOut | None:
        """What is said of the held-out episodes in the folder; None: there are none."""
        return self._told.evaluation

    def check_weights(self) -> None:
        """Raise BadInput where the weights are not what was written: opening a folder compares their size."""
        for name, file in self._told.files.items():
            _check_file(self.path, name, file, weights=True)

    def digest(self) -> str:
        return self._told.digest

    def weights(self, role: str) -> Weights:
        if self.method.owner(role) != self.method.owner(self._told.role):
            raise BadInput(
                f"{self.path} has the weights of role {self._told.role}, not of {role}",
                expected=self._told.role,
                next_step=f"crl export RUN --role {quoted(role)} --to FOLDER writes those of {quoted(role)}",
            )
        told = self._told
        return Weights(
            role=self.method.owner(role), round=told.round, updates=told.updates, source=told.source,
            base_digest=told.base_digest, checkpoint=None, weights_digest=told.weights_digest,
        )  # fmt: skip

    def checkpoint(self, weights: Weights) -> Path | None:
        return self.path if self._told.kind == "adapter" else None

    def base(self, weights: Weights) -> Path:
        trained = trained_weights(str(self.path.resolve()))
        return self.path if trained is None else same_base(trained.base, weights.base_digest)

    def entries(self, entry_ids: Sequence[str] | None = None) -> list[ShownEntry]:
        if self._bank is None:
            return []
        names = [name for name in ShownEntry.__dataclass_fields__ if name != "embedder_cut"]
        table = self._bank.tables[ExportedEntry.table].select(names)
        if entry_ids is not None:
            table = rows_with(table, "entry_id", entry_ids)
        found = {row["entry_id"]: ShownEntry(**row, embedder_cut=False) for row in table.to_pylist()}
        return list(found.values()) if entry_ids is None else [found[each] for each in entry_ids]

    def snapshot(self) -> Snapshot:
        """The bank that its games are guided by, as it is searched; an empty one where none are. Its texts are in no
        segments here."""
        if self._bank is None or self._told.embedder is None:
            return Snapshot.of(self.round, [])
        plain: dict[str, Any] = {"segment": "", "embedding_file": "", "embedder_cut": False}
        entries = self._bank.tables[ExportedEntry.table]
        for name, value in plain.items():
            entries = entries.append_column(name, pa.repeat(value, entries.num_rows))
        return Snapshot(self.round, entries)

    def retriever(self) -> BankRetriever | None:
        if self._bank is None or not len(snapshot := self.snapshot()):
            return None
        # Searched exactly: what an approximate index learned from is not here.
        config = retrieval_of(self.method, training=False).model_copy(update={"index": "exact"})
        entries, masked = self._bank.tables[ExportedEntry.table], dict[str, set[str]]()
        for family, digest in self._told.suppressed:
            masked.setdefault(family, set()).add(digest)
        return BankRetriever(
            snapshot,
            vectors_of(entries[EMBEDDING]),
            [RetrievalCount(entry_id=entry, count=count, last_round=last) for entry, count, last in self._told.counts],
            config,
            round=self.round,
            bank_round=self._bank.provenance["round"],
            partitions=partitions_of(self.method),
            masked=masked,
        )

    def services(self, stack: ExitStack) -> _FolderServices:
        os.environ.update(prepare_environment(self.method.threads))
        services = _FolderServices(self.path, self.base, self.method, self._told)
        stack.callback(services.close)
        return services

    @cached_property
    def _bank(self) -> Gathered | None:
        return read_folder(self.path / BANK) if is_export(self.path / BANK) else None


class _FolderServices:
    """What lends the models and environments of a folder."""

    def __init__(self, folder: Path, base: Callable[[Weights], Path], method: Method, told: Description) -> None:
        self._folder, self._base, self._method, self._told = folder, base, method, told
        self._environments: dict[str, Environment] = {}
        self._policy: LoadedPolicy | None = None

    def environment(self, family: str, round_number: int) -> Environment:
        if family not in self._environments:
            config = self._method.family(family)
            assert config is not None
            self._environments[family] = make_environment(config.in_round(round_number))
        return self._environments[family]

    def policy(self, role: str, weights: Weights) -> Policy:
        if self._policy is None:
            settle_torch(self._method.threads)
            adapter = self._folder if self._told.kind == "adapter" else None
            self._policy = load_policy(
                self._method.role(role), self._base(weights), adapter, threads=self._method.threads,
                weights=weights.weights_digest,
            )  # fmt: skip
        return self._policy

    def embedder(self) -> Embedder:
        told, use = self._told.embedder, self._method.recipe.embedder()
        assert told is not None and use is not None
        name = told.name
        if name not in EMBEDDERS and HUB_ID.fullmatch(name) is None:  # a folder, beside this one as bases of adapters
            name = str(self._folder.resolve().parent / Path(name).name)
        return embedder_of_vectors(name, told.digest, use.query_instruction)

    def close(self) -> None:
        for environment in self._environments.values():
            environment.close()
        if self._policy is not None:
            self._policy.close()
