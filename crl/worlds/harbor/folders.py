"""Task folders: `instruction.md`, `task.toml`, `environment/Dockerfile`, `tests/test.sh`, and perhaps `solution/`."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError

from crl.errors import BadInput
from crl.paths import possible_path, short
from crl.worlds.harbor.dockerfile import Layout, Refused, layout_of, sources_of
from crl.worlds.json_files import reason
from crl.worlds.programs.tasks import LONGEST, WHERE

_SHOWN = 5
"""Folders that a refusal names."""
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", ".dockerignore")


class _Timed(BaseModel):
    timeout_sec: float | None = Field(None, gt=0, allow_inf_nan=False)
    env: dict[str, str] = {}


class _Verifier(_Timed):
    environment_mode: str = "shared"


class _World(BaseModel):
    env: dict[str, str] = {}
    memory_mb: int = Field(0, ge=0, le=1 << 22)
    storage_mb: int | None = Field(None, ge=1, le=1 << 22)
    os: str = "linux"
    gpus: int = 0
    mcp_servers: list[Any] = []


class _Settings(BaseModel):
    """What of `task.toml` is read."""

    agent: _Timed = _Timed()
    verifier: _Verifier = _Verifier()
    environment: _World = _World()
    steps: list[Any] = []

    def refused(self) -> str:
        """What a sandbox of this machine cannot do; empty where there is nothing."""
        variables = [*self.environment.env.items(), *self.agent.env.items(), *self.verifier.env.items()]
        outside = [name for name, value in variables if "${" in value]
        asked = {
            "it has several steps": self.steps,
            "its tests want an environment of their own": self.verifier.environment_mode != "shared",
            f"it wants {self.environment.os}": self.environment.os != "linux",
            "it wants a GPU": self.environment.gpus,
            "it wants MCP servers": self.environment.mcp_servers,
            f"{', '.join(outside)} is to be a variable of this machine": outside,
        }
        return "; ".join(said for said, wanted in asked.items() if wanted)


@dataclass(frozen=True, slots=True)
class FolderTask:
    """A task folder."""

    name: str
    folder: Path
    text: str
    layout: Layout
    seconds: float | None
    tests_seconds: float
    memory_mb: int
    storage_mb: int | None
    variables: Mapping[str, str]
    tests_variables: Mapping[str, str]
    """Those of the tests alone."""

    @property
    def content(self) -> str:
        """What it is told apart by."""
        return f"{self.name}\n{self.text}"

    @property
    def digest(self) -> bytes:
        """Of its content."""
        return hashlib.sha256(self.content.encode()).digest()


def located(name: str) -> Path:
    """The folder of tasks. Raises BadInput where there is none."""
    path = possible_path(name, "the folder of tasks", where=f"{WHERE}.tasks", home=True)
    if not path.is_dir():
        raise BadInput(
            f"there is no folder {short(path)} in {Path.cwd()}",
            expected="a folder of task folders, or one task folder",
            where=f"{WHERE}.tasks",
            next_step="correct the path: it begins in the folder that crl is started in",
        )
    return path


def tasks_of(name: str) -> Sequence[FolderTask]:
    """The task folders of a folder, by their names. Raises BadInput that names those that cannot be played."""
    path = located(name)
    folders = [path] if (path / "task.toml").is_file() else sorted(each.parent for each in path.glob("*/task.toml"))
    found, faults = list[FolderTask](), list[str]()
    for folder in folders:
        try:
            found.append(_task(folder))
        except Refused as refused:
            faults.append(f"{folder.name}/environment/Dockerfile, {refused}")
        except (OSError, ValueError) as error:
            faults.append(f"{folder.name}: {error}")
    if faults or not found:
        more = [f"and {len(faults) - _SHOWN} more"] if len(faults) > _SHOWN else []
        said = "\n".join([*faults[:_SHOWN], *more]) if faults else "no folder in it holds a task.toml"
        raise BadInput(
            f"{len(faults)} of {len(folders)} task folders of {short(path)} cannot be played here:\n{said}",
            expected="tasks that need no image: a Dockerfile with FROM, WORKDIR, and COPY or ADD of local files",
            where=f"{WHERE}.tasks",
            next_step="install what they need on this machine and take the line out, or move the folders elsewhere",
        )
    return found


def _read(folder: Path, name: str) -> str:
    """Raises ValueError that names the file."""
    try:
        return (folder / name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{name} cannot be read: {reason(error)}") from None


def _task(folder: Path) -> FolderTask:
    """Raises OSError, ValueError or Refused where it cannot be played."""
    try:
        settings = _Settings.model_validate(tomllib.loads(_read(folder, "task.toml")))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"task.toml: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"task.toml: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    text = _read(folder, "instruction.md").strip()
    if not text or len(text.encode()) > LONGEST or "\x00" in text:
        raise ValueError(f"instruction.md has {len(text):,} characters: 1 to {LONGEST:,} bytes are expected")
    if not (folder / "tests" / "test.sh").is_file():
        raise ValueError("tests/test.sh is missing")
    if said := settings.refused():
        raise ValueError(f"task.toml: {said}")
    context = folder / "environment"
    for each in context.rglob("*"):
        if each.is_symlink() or each.name in _COMPOSE:
            raise ValueError(f"{each.relative_to(folder)} is {'a link' if each.is_symlink() else 'not read here'}")
    layout = layout_of(_read(folder, "environment/Dockerfile"))
    for step in layout.steps:
        sources_of(step, context)
    world = settings.environment
    return FolderTask(
        folder.name, folder.absolute(), text, layout, settings.agent.timeout_sec,
        settings.verifier.timeout_sec or 600.0, world.memory_mb, world.storage_mb,
        {**dict(layout.variables), **world.env, **settings.agent.env}, settings.verifier.env,
    )  # fmt: skip
