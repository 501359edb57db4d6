"""`experiment.yaml` of a run directory: format of the record, name and frozen method, as when the run was made.

Its first line holds the SHA-256 of the rest, so that a manual change is recognized.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from crl.config import Experiment, Method
from crl.errors import BadInput, FrozenMethodChanged, OtherFormat, RecordDamaged, RunDirectoryUnusable
from crl.limits import read_limited
from crl.records import RECORD_FORMAT
from crl.run.data_files import check_data, with_data_digests
from crl.run.files import in_words, sha256_bytes, write_atomically, write_once

EXPERIMENT = "experiment.yaml"
OTHER_VERSION = (
    "read the run with the version of crl that made it (`complementary-rl` in `provenance.versions` of any manifest), "
    "or train the experiment again under another name"
)
_HEADER = "# sha256 of what follows: "
_FIRST = re.compile(_HEADER.encode() + rb"([0-9a-f]{64})")
_NOTE = "# The frozen method of this run. Another method is another experiment: give it another name.\n"
_FORMAT = re.compile(rb"^format: (\d+)$", re.MULTILINE)
_LONGEST_VALUE = 60
_MOST_DIFFERENCES = 20


def render(name: str, method: Method) -> bytes:
    """The bytes of the file."""
    content = {
        "format": RECORD_FORMAT,
        "name": name,
        "method_digest": method.digest(),
        "method": method.model_dump(mode="json"),
    }
    body: str = _NOTE + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=110)
    return f"{_HEADER}{sha256_bytes(body.encode())}\n".encode() + body.encode()


def load(run_path: Path) -> tuple[str, Method]:
    """(name, method). Raises RunDirectoryUnusable where there is no such file, or the package that a kind in it comes
    from is not installed; OtherFormat where the record has another format than this version's, RecordDamaged where the
    file was changed."""
    name, content = _parse(run_path)
    try:
        method = Method.model_validate(content)
    except ValidationError as error:
        if (missing := _not_installed(error)) is not None:
            raise RunDirectoryUnusable(
                f"run {name!r} cannot be read here: {missing.found}",
                expected="the packages that the run was made with",
                where=str(run_path / EXPERIMENT),
                next_step=missing.next_step,
            ) from error
        raise RecordDamaged(
            f"{EXPERIMENT} does not hold a method that this version can read: {error.error_count()} errors, first "
            f"{error.errors()[0]['loc']}: {error.errors()[0]['msg']}",
            where=str(run_path / EXPERIMENT),
            next_step=OTHER_VERSION,
        ) from error
    return name, method


def _not_installed(error: ValidationError) -> BadInput | None:
    """What a registry said about a kind that it could not load, if that is among the errors."""
    causes = (getattr(item.get("ctx", {}).get("error"), "__cause__", None) for item in error.errors())
    return next((cause for cause in causes if isinstance(cause, BadInput)), None)


def check_format(run_path: Path) -> None:
    """Raise OtherFormat where the record of a run has another format than this version reads and writes.

    An experiment file that is missing or damaged says nothing about it: `crl verify` names it.
    """
    try:
        _body(run_path)
    except (RecordDamaged, RunDirectoryUnusable):
        return


def check_same(run_path: Path, experiment: Experiment) -> None:
    """Raise FrozenMethodChanged, with the keys that differ, unless the run was made with this method."""
    name, content = _parse(run_path)
    method = with_data_digests(experiment).method
    _check_data(content, method)
    changes = [("name", name, experiment.name)] if name != experiment.name else []
    changes += list(differences(method.identity(content), method.identity(), "method"))
    if not changes:
        return
    lines = [f"  {key}: {_short(old)} in the run, {_short(new)} now" for key, old, new in changes[:_MOST_DIFFERENCES]]
    if len(changes) > _MOST_DIFFERENCES:
        lines.append(f"  and {len(changes) - _MOST_DIFFERENCES} more")
    raise FrozenMethodChanged(
        f"the method differs from the one run {name!r} was made with:\n" + "\n".join(lines),
        expected="the frozen method: everything that can change a number stays as it was",
        where=str(run_path / EXPERIMENT),
        next_step="give the experiment another name, or undo the change; `runtime` may change at any time",
    )


def _check_data(content: dict[str, Any], method: Method) -> None:
    """Raise FrozenMethodChanged where data of the method is not that of the recorded one."""
    for family, recorded in zip(method.families, content["families"], strict=False):
        if recorded.get("environment", {}).get("kind") == family.environment.kind:
            kept = family.model_copy(update={"data_digests": recorded.get("data_digests")})
            for world in kept.worlds.values():
                check_data(world)


def create(run_path: Path, experiment: Experiment) -> None:
    """Write the file unless it is there."""
    write_once(run_path / EXPERIMENT, render(experiment.name, experiment.method))


def replace(run_path: Path, experiment: Experiment) -> None:
    """Rewrite the file over a damaged one."""
    write_atomically(run_path / EXPERIMENT, render(experiment.name, experiment.method))


def differences(old: Any, new: Any, key: str = "") -> Iterable[tuple[str, Any, Any]]:
    """Dotted keys at which two plain values differ, with both values; `(absent)` where one has none."""
    if isinstance(old, dict) and isinstance(new, dict):
        for name in sorted({*old, *new}):
            inner = f"{key}.{name}" if key else str(name)
            yield from differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inner)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for index, (before, after) in enumerate(zip(old, new, strict=True)):
            yield from differences(before, after, f"{key}.{index}")
    elif old != new or type(old) is not type(new):
        yield key, old, new


class _Absent:
    def __repr__(self) -> str:
        return "(absent)"


_ABSENT = _Absent()


def _parse(run_path: Path) -> tuple[str, dict[str, Any]]:
    parsed = yaml.safe_load(_body(run_path))
    return str(parsed["name"]), parsed["method"]


def _body(run_path: Path) -> bytes:
    """The file after its first line: undamaged, and of this version's format."""
    path = run_path / EXPERIMENT
    try:
        content = read_limited(path)
    except FileNotFoundError as error:
        raise RunDirectoryUnusable(
            f"{run_path} is not a run directory: it has no {EXPERIMENT}",
            next_step="name the directory of a run, or start one with `crl train CONFIG`",
        ) from error
    except OSError as error:
        raise RunDirectoryUnusable(f"{path} cannot be read: {error.strerror}") from error
    first, _, body = content.partition(b"\n")
    recorded = _FIRST.fullmatch(first)
    found = sha256_bytes(body)
    if recorded is None or found != recorded[1].decode():
        named = "its first line names no SHA-256" if content else "it is empty"
        raise RecordDamaged(
            f"{EXPERIMENT} was changed: {named if recorded is None else f'its content has {in_words(found)}'}",
            expected=None if recorded is None else recorded[1].decode(),
            where=str(path),
            next_step="`crl train CONFIG` with the unchanged config writes it again",
        )
    written = _FORMAT.search(body)
    number = "no format number" if written is None else f"format {int(written[1])}"
    if written is None or int(written[1]) != RECORD_FORMAT:
        raise OtherFormat(
            f"the record of {run_path} has {number}",
            expected=f"format {RECORD_FORMAT}, which this version reads and writes",
            where=str(path),
            next_step=OTHER_VERSION,
        )
    return body


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"
