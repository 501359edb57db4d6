"""What a Dockerfile lays out, where it does no more: files that are copied, and the folder that work starts in.

Images are not built. What only an image would have (packages, users, services) is refused with its line.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

METADATA = ("LABEL", "MAINTAINER", "EXPOSE", "CMD")
"""What says nothing about files: Harbor starts no command of an image's either."""
_OWN_FLAGS = re.compile(r"--(chown|link|chmod)\b")
_NOT_LOCAL = re.compile(r"^[\w+.-]+://|^git@|\.git$|\.(tar(\.\w+)?|tgz|tbz2?|txz|zip)$")
_SYSTEM = ("bin", "boot", "crl", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
"""Folders of this machine, which a sandbox shows as they are."""


class Refused(Exception):
    """What cannot be had without an image."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(f"line {line}: {why}")


@dataclass(frozen=True, slots=True)
class Copy:
    """Files that are copied into a folder, or as one file."""

    line: int
    sources: tuple[str, ...]
    to: PurePosixPath
    into: bool
    """Whether `to` is a folder by how it is written."""
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Layout:
    """What a Dockerfile says, in its order."""

    steps: tuple[Copy, ...]
    folder: PurePosixPath
    folders: tuple[PurePosixPath, ...]
    """All that are named as the folder to work in."""
    variables: tuple[tuple[str, str], ...]


def layout_of(text: str) -> Layout:
    """Raises Refused for a line that does more."""
    steps, variables, values = list[Copy](), dict[str, str](), dict[str, str]()
    folders = [PurePosixPath("/")]
    bases = 0
    for line, word, rest in _instructions(text):
        if word in ("ENV", "ARG"):
            given = _pairs(rest, line, values)
            values |= given
            variables |= given if word == "ENV" else {}
        elif word == "FROM":
            bases += 1
            if bases > 1:
                raise Refused(line, "a second FROM: an image would be built to copy from")
        elif word == "WORKDIR":
            folders.append(_inside(folders[-1] / _filled(rest, values), line))
        elif word in ("COPY", "ADD"):
            steps.append(_copy(line, word, rest, folders[-1], values))
        elif word not in METADATA:
            raise Refused(line, f"{word}, which is done when an image is built: {rest[:80]}")
    if not bases:
        raise Refused(1, "it names no base: FROM is missing")
    if len(folders) == 1:
        raise Refused(1, "it names no folder to work in: WORKDIR is missing")
    return Layout(tuple(steps), folders[-1], tuple(folders[1:]), tuple(variables.items()))


def lay_out(layout: Layout, context: Path, tree: Path) -> None:
    """Copy the files of a context to where they are in a tree. Raises Refused where one is not there."""
    for folder in layout.folders:
        _under(tree, folder).mkdir(parents=True, exist_ok=True)
    for step in layout.steps:
        found = sources_of(step, context)
        to = _under(tree, step.to)
        into = step.into or len(found) > 1 or to.is_dir()
        for path in found:
            if path.is_dir():
                shutil.copytree(path, to, symlinks=True, dirs_exist_ok=True)
                continue
            target = to / path.name if into else to
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, target, follow_symlinks=False)
            if step.mode is not None and not target.is_symlink():
                target.chmod(step.mode)


def _under(tree: Path, path: PurePosixPath) -> Path:
    return tree.joinpath(*path.parts[1:])


def sources_of(step: Copy, context: Path) -> list[Path]:
    """The files and folders that are copied. Raises Refused where one is not there."""
    found = list[Path]()
    for source in step.sources:
        name = str(PurePosixPath(source.lstrip("/") or "."))
        if ".." in PurePosixPath(name).parts:
            raise Refused(step.line, f"{source} is outside of the folder environment")
        matches = [context] if name == "." else sorted(context.glob(name))
        if not matches:
            raise Refused(step.line, f"there is no {source} in the folder environment")
        found += matches
    return found


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Each instruction with its line; a line that ends with a backslash goes on."""
    parts, first = list[str](), 0
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        first = first if parts else number
        parts.append(line.strip().removesuffix("\\"))
        if not line.rstrip().endswith("\\"):
            word, _, rest = " ".join(parts).strip().partition(" ")
            parts = []
            yield first, word.upper(), rest.strip()
    if parts:
        word, _, rest = " ".join(parts).strip().partition(" ")
        yield first, word.upper(), rest.strip()


def _pairs(rest: str, line: int, values: dict[str, str]) -> dict[str, str]:
    words = _words(rest, line)
    if words and "=" not in words[0]:  # ENV name value
        words = [f"{words[0]}={' '.join(words[1:])}"]
    return {name: _filled(value, values) for name, _, value in (word.partition("=") for word in words)}


def _copy(line: int, word: str, rest: str, folder: PurePosixPath, values: dict[str, str]) -> Copy:
    mode = None
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        rest = rest.strip()
        if not _OWN_FLAGS.match(flag):
            raise Refused(line, f"{word} {flag}: it copies from an image, or not as it is")
        if flag.startswith("--chmod="):
            if not re.fullmatch(r"[0-7]{3,4}", octal := flag.removeprefix("--chmod=")):
                raise Refused(line, f"{word} {flag}: a mode is three or four octal digits")
            mode = int(octal, 8)
    try:
        words = json.loads(rest) if rest.startswith("[") else _words(rest, line)
    except ValueError:
        words = []
    if len(words) < 2 or not all(isinstance(each, str) for each in words) or "<<" in rest:
        raise Refused(line, f"{word} {rest[:80]}: files, and where they are copied to, are expected")
    *sources, to = (_filled(each, values) for each in words)
    for source in sources:
        if word == "ADD" and _NOT_LOCAL.search(source):
            raise Refused(line, f"ADD {source}: it is fetched, or unpacked")
    into = to.endswith("/") or to in (".", "./") or len(sources) > 1
    return Copy(line, tuple(sources), _inside(folder / to, line), into, mode)


def _words(rest: str, line: int) -> list[str]:
    try:
        return shlex.split(rest)
    except ValueError as error:
        raise Refused(line, f"{rest[:80]}: {error}") from None


def _filled(text: str, values: dict[str, str]) -> str:
    """A text with the values of its variables; one that is not known is empty, as in a build."""
    return re.sub(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})", lambda m: values.get(m[1] or m[2], m[3] or ""), text.strip())


def _inside(path: PurePosixPath, line: int) -> PurePosixPath:
    """A path without `..`, that a sandbox can show as a folder of its own."""
    parts = list[str]()
    for part in path.parts[1:]:
        parts = parts[:-1] if part == ".." else [*parts, part]
    if not parts or parts[0] in _SYSTEM:
        raise Refused(line, f"/{'/'.join(parts)} is a folder of the system, which stays as it is")
    return PurePosixPath("/", *parts)
