"""`kind: harbor`: a command of a person's plays task folders in sandboxes, and their own tests say what it earned.

In a sandbox the folders that a Dockerfile names are where they are in its image, with a `/root`, a `/tmp` and a `/logs`
of the episode. They last from the program to the tests; all else is this machine's, and cannot be written. Tests, and
what they write, are in folders that no program of the episode ever had.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from crl.protocols import Program, Step
from crl.records import OutsideRows
from crl.worlds.harbor.dockerfile import lay_out
from crl.worlds.harbor.folders import FolderTask, located, tasks_of
from crl.worlds.programs.environment import ProgramConfig, ProgramEnvironment, ended, outside_rows
from crl.worlds.programs.isolated import Isolated, argv_of, is_file
from crl.worlds.programs.tasks import Sides, split
from crl.worlds.sandbox.bubblewrap import Workspace, give
from crl.worlds.sandbox.limits import Limits, in_words
from crl.worlds.sandbox.workplace import remove

_OUTPUT = 8000
"""Characters of what tests write that are kept."""
_SHOWN = 1000
"""Characters of it that a check shows: the last."""
_LARGEST = 1 << 20
"""Bytes of a reward file."""


class HarborConfig(ProgramConfig):
    """Task folders in Harbor's form: your agent plays in a sandbox, and the folder's tests score it."""

    model_config = ConfigDict(title="harbor")

    kind: Literal["harbor"] = "harbor"
    command: list[Annotated[str, Field(min_length=1)]] = Field(
        min_length=1,
        description="The agent's command; {task} stands for the instruction, and `python` for crl's interpreter. "
        "File names are relative to where crl starts. It runs in the task's WORKDIR, with OPENAI_BASE_URL, "
        "OPENAI_API_KEY and CRL_TASK (the instruction).",
    )
    tasks: str = Field(min_length=1, description="Folder of task folders.")
    success_at: float = Field(1.0, ge=-1_000_000, le=1_000_000, description="Least reward that counts as solved.")

    def sides(self) -> Sides[FolderTask]:
        """The tasks. Raises BadInput where they cannot be read."""
        held_out = self.held_out_from is not None
        return split(tasks_of(self.tasks), lambda task: task.digest, self.test_size, held_out=held_out)

    def data_files(self) -> Mapping[str, Path]:
        """The folder, and the files that the command names."""
        named = {word: Path(word).absolute() for word in self.command if is_file(word)}
        return {self.tasks: located(self.tasks), **named}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The tasks, before they are played. Raises BadInput where they cannot be read."""
        return outside_rows(((task.name, task.text) for task in tasks_of(self.tasks)), self.tasks)

    def make(self) -> HarborEnvironment:
        """A wave of task folders. Raises BadInput where they cannot be read, or there are no sandboxes here."""
        return HarborEnvironment(self)


class NoReward(Exception):
    """Tests that say nothing."""

    code = "environment_tests"

    def __init__(self, why: str, output: str) -> None:
        super().__init__(why)
        self.details = f"{why}; it wrote:\n{output}"


class HarborEnvironment(ProgramEnvironment[FolderTask]):
    """A wave of task folders (protocols `Environment`, `RunsPrograms`, `Leveled`, `Proves`)."""

    def __init__(self, config: HarborConfig) -> None:
        """Raises BadInput where the tasks cannot be read, or there are no sandboxes here."""
        super().__init__(config)
        self.config = config
        self._argv = argv_of(config.command)
        limits = Limits(seconds=min(config.seconds + config.max_calls, 86_400.0))
        self._isolated = Isolated(self._argv, limits, "kind: harness")
        self.home = self._isolated.home
        self._workspaces: dict[int, Workspace] = {}
        """Of the slots."""

    def program(self, slot: int, folder: Path) -> Program:
        """The command, in the world of a slot's task."""
        task = self.tasks[slot]
        words = _with(task.variables, [word.replace("{task}", task.text) for word in self._argv])
        workspace = self._workspaces[slot] = self._laid_out(task, folder)
        started = self._isolated.program(words, workspace, {"CRL_TASK": task.text}, self._limits(task))
        return replace(started, seconds=task.seconds)

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        """What the task's own tests say. Raises NoReward where they say nothing, OSError where they cannot run."""
        (reward, parts), _ = self._tested(self.tasks[slot], self._workspaces[slot])
        return ended(reward, parts, self.config.success_at)

    def content(self, slot: int) -> str:
        """The name and the instruction of a slot's task."""
        return self.tasks[slot].content

    def proofs(self, *, kept: bool = False) -> Iterator[tuple[str, str | None]]:
        """Each task with a reference solution, and why it does not win; empty where it does."""
        for name, task in {task.name: task for task in (*self._sides.training, *self._sides.held_out)}.items():
            if (task.folder / "solution" / "solve.sh").is_file():
                yield name, None if kept else self._fault(task)

    def _fault(self, task: FolderTask) -> str:
        """Why the reference solution of a task does not win."""
        folder = self._isolated.home / f"try-{task.digest.hex()[:16]}"
        folder.mkdir()
        try:
            workspace = self._laid_out(task, folder)
            self._ran("solution/solve.sh", task, workspace, task.seconds or self.config.seconds, folder)
            (reward, _), output = self._tested(task, workspace)
        except (NoReward, OSError) as error:
            return str(getattr(error, "details", error))
        finally:
            remove(folder)
        wrote = f"; they wrote:\n{output[-_SHOWN:].strip()}" if output else ""
        fault = f"its tests give the reward {reward:g} to solution/solve.sh{wrote}"
        return "" if reward >= self.config.success_at else fault

    def _laid_out(self, task: FolderTask, folder: Path) -> Workspace:
        """The folders of a task, in an empty one, for a user of their own."""
        for name, mode in (("root", 0o755), ("tmp", 0o1777), ("logs/agent", 0o755), ("logs/verifier", 0o755)):
            (folder / name).mkdir(parents=True)
            (folder / name).chmod(mode)
        lay_out(task.layout, task.folder / "environment", folder)
        mounts = {f"/{each.name}": each for each in sorted(folder.iterdir())}
        return replace(self._isolated.sandbox.prepare(folder), mounts=mounts, folder=str(task.layout.folder))

    def _limits(self, task: FolderTask, seconds: float | None = None) -> Limits:
        limits = self._isolated.sandbox.limits
        memory, stored = max(task.memory_mb, limits.memory_mb), task.storage_mb or limits.tree_mb
        changes = {"memory_mb": memory, "tree_mb": stored, "file_mb": min(stored, 1 << 20)}
        return limits.model_copy(update={"seconds": seconds or limits.seconds, **changes})

    def _ran(self, script: str, task: FolderTask, workspace: Workspace, seconds: float, logs: Path) -> str:
        """Run a script of a task folder, with the files beside it. What it wrote. Raises NoReward at a limit."""
        source = (task.folder / script).parent
        copied = logs.with_name(f"{logs.name}-{source.name}")
        shutil.copytree(source, copied, symlinks=True)
        try:
            if workspace.owner is not None:
                give(copied, workspace.owner)
            mounts = {**workspace.mounts, f"/{source.name}": copied}
            variables = {**task.variables, **(task.tests_variables if source.name == "tests" else {})}
            command = _with(variables, ["bash", f"/{script}"])
            limits, world = self._limits(task, seconds), replace(workspace, mounts=mounts)
            ran = self._isolated.sandbox.run(world, command, longest=_OUTPUT, limits=limits)
        finally:
            remove(copied)
        if ran.ended:
            raise NoReward(f"{script} was stopped: {in_words(limits, ran.ended)}", ran.output)
        return ran.output

    def _tested(self, task: FolderTask, workspace: Workspace) -> tuple[tuple[float, Mapping[str, float]], str]:
        """The reward with its parts by the tests of a task, and what they wrote."""
        logs = workspace.tree.with_name(f"{workspace.tree.name}-logs")
        try:
            for name in ("agent", "artifacts", "verifier"):  # in a folder that tests cannot make anything else of
                (logs / name).mkdir(parents=True)
                if workspace.owner is not None:
                    give(logs / name, workspace.owner)
            world = replace(workspace, mounts={**workspace.mounts, "/logs": logs})
            output = self._ran("tests/test.sh", task, world, task.tests_seconds, logs)
            try:
                return _reward(logs / "verifier"), output
            except (OSError, ValueError) as error:
                raise NoReward(f"tests/test.sh gave no reward: {error}", output) from None
        finally:
            remove(logs)

    def close(self) -> None:
        """Remove the folder of sandboxes."""
        self._isolated.close()


def _with(variables: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """A command with variables of a task. They are set in the sandbox: what starts it is not a task's to lead."""
    own = {name: value for name, value in variables.items() if not name.startswith(("OPENAI_", "CRL_", "-"))}
    given = {"HOME": "/root", "PYTHONPATH": "", **own}
    return ["/usr/bin/env", *(f"{name}={value}" for name, value in given.items()), *command]


def _reward(folder: Path) -> tuple[float, Mapping[str, float]]:
    """What tests wrote. Raises OSError or ValueError where it is no reward."""
    if (text := _text(folder / "reward.json")) is None:
        if (text := _text(folder / "reward.txt")) is None:
            raise ValueError("/logs/verifier holds neither reward.json nor reward.txt")
        return float(text), {}
    value = json.loads(text)
    if not isinstance(value, dict):
        return float(value), {}
    parts = {str(name): float(each) for name, each in value.items() if isinstance(each, (int, float))}
    if "reward" not in parts and len(parts) != 1:
        raise ValueError("reward.json names no reward")
    return parts.get("reward", next(iter(parts.values()))), parts


def _text(path: Path) -> str | None:
    """A file that whoever ran there may have made anything of."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_nlink > 1 or about.st_size > _LARGEST:
            raise ValueError(f"{path.name} is no small file")
        return os.read(file, _LARGEST).decode()
    finally:
        os.close(file)
