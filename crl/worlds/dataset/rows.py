"""The rows of a data set: where they are, what of each is the prompt, and which of them are held out.

A prompt is a text, or a list of messages that ends with the user's, as in the conversational data sets of TRL. Whether
a row is held out is decided by a digest of its prompt alone: equal prompts are on one side, and no row moves when
another one is added or removed. Rows that are equal in everything count once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.worlds.json_files import shown
from crl.worlds.records import KINDS, records, splits_of

WHERE = "method.families[].environment"
_ROLES = ("system", "user", "assistant")
_IMAGES = ("image", "image_url", "video", "audio")
_MEDIA = {"bytes", "path"}
"""As `datasets` stores an image or a sound in a file."""


@dataclass(frozen=True, slots=True)
class Task:
    """A row as it is played."""

    prompt: str | list[dict[str, str]]
    """As a reward function is given it."""
    columns: Mapping[str, Any]
    """All of the row."""
    location: str
    """Where it is, for messages."""
    digest: bytes
    """Of its prompt."""

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Roles and texts of its prompt; the last message is the user's."""
        if isinstance(self.prompt, str):
            return [("user", self.prompt)]
        return [(message["role"], message["content"]) for message in self.prompt]


@dataclass(frozen=True)
class Sides:
    """Rows of training and held-out ones. Raises BadInput where one side has none."""

    training: Sequence[Task]
    held_out: Sequence[Task]
    repeated: int
    """Rows that are equal to an earlier one."""

    def of(self, seed: int, first: int | None) -> Task:
        """The row of a seed: seeds from `first` on mean held-out rows."""
        if first is None or seed < first:
            return self.training[seed % len(self.training)]
        return self.held_out[(seed - first) % len(self.held_out)]


@dataclass(frozen=True)
class Source:
    """Which rows are meant."""

    data: str
    subset: str | None
    split: str | None
    test_split: str | None
    prompt: str
    test_size: float
    held_out: bool
    """Whether rows are held out at all."""

    def sides(self) -> Sides:
        """The rows, read once while the files stay as they are. Raises BadInput where they cannot be played."""
        return _sides(self, _state(located(self.data)))


def bad_row(found: str, expected: str, where: str) -> BadInput:
    """A row, or a file of rows, that cannot be read."""
    return BadInput(
        f"the data set cannot be read: {found}",
        expected=expected,
        where=where,
        next_step="correct or remove the row, or name another file as environment.data",
    )


def located(data: str) -> Path:
    """The file or folder of a data set: one that is here, or that of a data set of the Hub, `owner/name` or
    `owner/name@revision`, which is downloaded where it is not here. Raises BadInput."""
    path = possible_path(data, "the data set", where=f"{WHERE}.data", home=True)
    if path.exists():
        return path
    name, _, revision = data.partition("@")
    if path.suffix in KINDS or name.count("/") != 1 or name.startswith((".", "/", "~")):
        raise BadInput(
            f"there is no file {short(path)} in {Path.cwd()}",
            expected=f"a file ({', '.join(KINDS)}), a folder that datasets.save_to_disk wrote, or the id of a data set "
            "of the Hugging Face Hub",
            where=f"{WHERE}.data",
            next_step="correct the path: it begins in the folder that crl is started in",
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    get = partial(snapshot_download, name, repo_type="dataset", revision=revision or None)
    with suppress(LocalEntryNotFoundError):  # what is here stays what it is, whatever the branch becomes
        return Path(get(local_files_only=True))
    try:
        return Path(get())
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError, ValueError) as error:
        raise BadInput(
            f"the data set {short(data)} cannot be got: {type(error).__name__}: {error}",
            expected="a data set of the Hugging Face Hub that this machine can reach and may read, or a file",
            where=f"{WHERE}.data",
            next_step="correct the id; for one with a gate: hf auth login",
        ) from None


def _state(path: Path) -> tuple[Any, ...]:
    """What changes when a data set does, as far as a look at its files tells."""
    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    return tuple((str(each), (stat := each.stat()).st_mtime_ns, stat.st_size) for each in files)


@lru_cache(maxsize=4)
def _sides(source: Source, state: tuple[Any, ...]) -> Sides:
    path = located(source.data)
    rows, repeated = _tasks(source, path, source.split)
    if source.test_split is not None:
        others, more = _tasks(source, path, source.test_split)
        known = {task.digest for task in others}
        training, held_out = [task for task in rows if task.digest not in known], others
        repeated += more
    elif source.held_out:
        training = [task for task in rows if _fraction(task) >= source.test_size]
        held_out = [task for task in rows if _fraction(task) < source.test_size]
    else:
        training, held_out = rows, rows
    if not training or not held_out:
        raise BadInput(
            f"{len(rows)} different rows leave {len(training)} to train on and {len(held_out)} to evaluate on",
            expected="rows on both sides",
            where=f"{WHERE}.test_split" if source.test_split is not None else f"{WHERE}.test_size",
            next_step="choose another test_split"
            if source.test_split is not None
            else f"change test_size ({source.test_size:g}), or bring more rows",
        )
    # Held-out rows in an order of their own: neighbors in a file are often alike.
    return Sides(training, sorted(held_out, key=lambda task: task.digest), repeated)


def _fraction(task: Task) -> float:
    return int.from_bytes(task.digest[:8]) / 2**64


def _tasks(source: Source, path: Path, split: str | None) -> tuple[list[Task], int]:
    """The different rows of a split, and how many others are equal to one of them."""
    found: list[Task] = []
    first_of: dict[bytes, Task] = {}
    rows: set[str] = set()
    """Rows whose prompt is there more than once."""
    repeated = 0
    for where, record in _records(source, path, split):
        task = _task(record, source.prompt, where)
        first = first_of.setdefault(task.digest, task)
        if first is not task:
            rows.add(_row(first))
            if (row := _row(task)) in rows:
                repeated += 1
                continue
            rows.add(row)
        found.append(task)
    if not found:
        raise bad_row("it holds no row", "at least two rows", str(path))
    return found, repeated


def _row(task: Task) -> str:
    return json.dumps(task.columns, sort_keys=True, default=str)


def _records(source: Source, path: Path, split: str | None) -> Iterator[tuple[str, Any]]:
    saved = path.is_file() or (path / "state.json").is_file() or bool(splits_of(path))
    if saved or (source.subset is None and split is None and not _is_repository(path)):
        if path.is_file() and (source.subset or split):
            raise BadInput(
                f"{short(source.data)} is one file: it has no subset and no split",
                expected="a folder or a data set of the Hub",
                where=f"{WHERE}.{'split' if split else 'subset'}",
                next_step="leave it out; test_size holds some of the rows out",
            )
        yield from records(path, bad_row, split=split or "train")
        return
    import datasets

    datasets.disable_progress_bars()
    try:
        loaded: Any = datasets.load_dataset(str(path), source.subset, split=split or "train")
    except Exception as error:  # a library with many ways to fail, over files of others
        raise bad_row(
            f"{type(error).__name__}: {error}",
            "a data set that `datasets.load_dataset` can load",
            f"{source.data}, subset {source.subset}, split {split or 'train'}",
        ) from None
    for name, feature in loaded.features.items():
        if isinstance(feature, datasets.Image | datasets.Audio):
            raise _no_text(type(feature).__name__.lower(), f"{source.data}, column {name}")
    yield from ((f"{source.data}, row {number}", row) for number, row in enumerate(loaded))


def _is_repository(path: Path) -> bool:
    """Whether a folder is a snapshot of the Hub, whose files `datasets` knows how to choose among."""
    return path.parent.name == "snapshots" or (path / "README.md").is_file()


def _task(record: Any, column: str, where: str) -> Task:
    if not isinstance(record, Mapping):
        raise bad_row(f"it is {shown(record)}", "an object with named columns", where)
    if column not in record:
        raise BadInput(
            f"a row has no column {column!r}",
            expected=f"the column of the prompts, one of {', '.join(map(str, record))}",
            where=where,
            next_step="name it as environment.prompt",
        )
    for name, value in record.items():
        if any(isinstance(each, Mapping) and each.keys() == _MEDIA for each in _listed(value)):
            raise _no_text("an image or a sound", f"{where}, column {name}")
    prompt = _prompt(record[column], f"{where}, column {column}")
    content = prompt if isinstance(prompt, str) else json.dumps(prompt, sort_keys=True)
    digest = hashlib.sha256(content.encode("utf-8", "backslashreplace")).digest()
    return Task(prompt, dict(record), where, digest)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _prompt(value: Any, where: str) -> str | list[dict[str, str]]:
    if isinstance(value, str) and value.strip():
        return value
    if not isinstance(value, list) or not value or not all(isinstance(message, Mapping) for message in value):
        expected = "a text, or a list of messages with `role` and `content`"
        raise bad_row(f"the prompt is {'empty' if value in ('', None) else shown(value)}", expected, where)
    messages = [{"role": str(each.get("role")), "content": _content(each.get("content"), where)} for each in value]
    roles = [message["role"] for message in messages]
    if roles[-1] != "user" or "system" in roles[1:] or set(roles) - set(_ROLES):
        raise bad_row(
            f"the roles of its messages are {', '.join(roles)}",
            "perhaps system, then user and assistant in turn, the last one user",
            where,
        )
    return messages


def _content(value: Any, where: str) -> str:
    if isinstance(value, str):
        return value
    texts = []
    for part in _listed(value):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in _IMAGES:
            raise _no_text(str(kind), where)
        if kind != "text" or not isinstance(part.get("text"), str):
            raise bad_row(f"a message holds {shown(part)}", "a text", where)
        texts.append(part["text"])
    return "".join(texts)


def _no_text(kind: str, where: str) -> BadInput:
    return BadInput(
        f"the data set holds {kind}: text only is read here",
        expected="prompts and columns of text",
        where=where,
        next_step="take the column out, or describe what it shows in words",
    )
