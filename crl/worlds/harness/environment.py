"""`kind: harness`: its settings, how a program is started for a task, and what it earned."""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import ConfigDict, Field, field_validator

from crl.config.base import off
from crl.config.registry import load_object
from crl.errors import BadInput
from crl.protocols import FreeText, Program, Step, StopReason
from crl.records import OutsideRows
from crl.worlds.json_files import shown
from crl.worlds.programs.environment import ProgramConfig, ProgramEnvironment, ended, outside_rows
from crl.worlds.programs.isolated import Isolated, argv_of, is_file
from crl.worlds.programs.tasks import WHERE, Sides, Task, located, sides_of
from crl.worlds.sandbox.limits import Limits

Target = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
_GIVEN = ("task", "messages", "folder", "exit_code")


class HarnessConfig(ProgramConfig):
    """Your agent as it is: a program per episode that calls the actor over an OpenAI-style API."""

    model_config = ConfigDict(title="harness")

    kind: Literal["harness"] = "harness"
    command: Target | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] = Field(
        description="The agent's command, or module:function; {task} stands for the task's text, and `python` "
        "for crl's interpreter. File names are relative to where crl starts. It runs in an empty folder, with "
        "OPENAI_BASE_URL, OPENAI_API_KEY and CRL_TASK."
    )
    tasks: str = Field(
        min_length=1, description="File of tasks, one row each: .jsonl, .json, .csv, .parquet or .arrow."
    )
    prompt: str = Field("task", min_length=1, description="Column of the task's text.")
    reward: Target | None = Field(
        None,
        description="module:function called at the end: reward(task, messages, folder, exit_code, **columns) "
        "takes what it names, and returns a number or named parts to add. null: a judge gives the reward.",
    )
    success_at: float = Field(1.0, ge=-1_000_000, le=1_000_000, description="Least reward that counts as solved.")
    isolate: bool = Field(
        False,
        exclude_if=off,
        description="Run each program in a sandbox (bubblewrap): no network but the actor, only its folder "
        "writable; it reads the system, the interpreter and files that the command names.",
    )

    @field_validator("command", mode="before")
    @classmethod
    def _is_no_line(cls, command: Any) -> Any:
        if isinstance(command, str) and len(words := command.split()) > 1:
            with suppress(ValueError):  # a quote without its end
                words = shlex.split(command)
            raise ValueError(f"write the program and its arguments as a list: [{', '.join(map(shlex.quote, words))}]")
        return command

    @property
    def rewards_nothing(self) -> bool:
        """Whether there is no reward function."""
        return self.reward is None

    @property
    def argv(self) -> list[str]:
        """The command with what it names found; {task} still stands for the task."""
        if isinstance(self.command, str):
            return [sys.executable, str(Path(__file__).with_name("call.py")), self.command]
        return argv_of(self.command)

    def sides(self) -> Sides[Task]:
        """The tasks. Raises BadInput where they cannot be read."""
        return sides_of(self.tasks, self.prompt, self.test_size, held_out=self.held_out_from is not None)

    def data_files(self) -> Mapping[str, Path]:
        """The tasks, and the files that the command names."""
        named = [] if isinstance(self.command, str) else [word for word in self.command if is_file(word)]
        return {self.tasks: located(self.tasks), **{name: Path(name).absolute() for name in named}}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The tasks, before they are played. Raises BadInput as :meth:`sides`."""
        sides = self.sides()
        tasks = {id(task): task for task in [*sides.training, *sides.held_out]}.values()
        return outside_rows(((task.location, task.text) for task in tasks), self.tasks)

    def make(self) -> HarnessEnvironment:
        """A wave of programs. Raises BadInput where the tasks or the reward cannot be used."""
        return HarnessEnvironment(self)


class HarnessEnvironment(ProgramEnvironment[Task]):
    """A wave of programs (protocols `Environment`, `RunsPrograms`, `Leveled`)."""

    def __init__(self, config: HarnessConfig) -> None:
        """Raises BadInput where the tasks, the program or the reward cannot be used."""
        super().__init__(config)
        self.config = config
        self._argv = config.argv
        self._isolated = self._in_sandboxes() if config.isolate else None
        if self._isolated is not None:
            self.home = self._isolated.home
        elif shutil.which(self._argv[0]) is None:
            raise no_program(self._argv[0])
        if isinstance(config.command, str):
            _function(config.command, "command")
        self._reward = None if config.reward is None else _function(config.reward, "reward")
        if self._reward is not None:
            self._wanted = _wanted(self._reward, str(config.reward), self._sides.training[0].columns)

    def _in_sandboxes(self) -> Isolated:
        """Sandboxes. Raises BadInput where there are none here, or the program would not be there."""
        if isinstance(self.config.command, str):
            raise BadInput(
                f"isolate is true, and the command is the function {self.config.command}, whose module may import what "
                "a sandbox does not show",
                expected="a command that names its files",
                where=f"{WHERE}.command",
                next_step="write a file that calls it: [python, FILE]",
            )
        return Isolated(self._argv, Limits(seconds=min(self.config.seconds + self.config.max_calls, 86_400.0)))

    def program(self, slot: int, folder: Path) -> Program:
        """The command with the task of a slot."""
        task = self.tasks[slot].text
        words = [word.replace("{task}", task) for word in self._argv]
        if self._isolated is not None:
            return self._isolated.program(words, self._isolated.sandbox.prepare(folder), {"CRL_TASK": task})
        path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"CRL_TASK": task, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        return Program(tuple(words), variables)

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        """What the reward function says of a program that has ended. Raises what it raises, and TypeError for what is
        no reward."""
        task = self.tasks[slot]
        _tidy(folder, isolated=self._isolated is not None)
        if self._reward is None:  # a judge reads what was asked and answered
            return Step("", FreeText(""), True, "", True, False, 0.0, StopReason.failure)
        given = {"task": task.text, "messages": list(messages), "folder": folder, "exit_code": exit_code}
        values = {**task.columns, **given}
        returned = self._reward(**{name: value for name, value in values.items() if self._wanted(name)})
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        try:
            parts = {str(name): float(part) for name, part in returned.items()} if isinstance(returned, Mapping) else {}
            reward = float(sum(parts.values()) if parts else returned)
        except TypeError:
            expected = "a number or a dictionary of named numbers is expected"
            raise TypeError(f"{self.config.reward} returned {shown(returned)}: {expected}") from None
        return ended(reward, parts, self.config.success_at)

    def content(self, slot: int) -> str:
        """The task of a slot."""
        return self.tasks[slot].text

    def close(self) -> None:
        """Remove the folder of sandboxes."""
        if self._isolated is not None:
            self._isolated.close()


def _tidy(folder: Path, *, isolated: bool) -> None:
    """Remove what a reward function would wait for without end: what is neither a file nor a folder. Of a program in a
    sandbox also links that lead out of its folder, to what it could not read itself."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            leads_out = isolated and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
            if leads_out if path.is_symlink() else not (path.is_file() or path.is_dir()):
                path.unlink()


async def _awaited(returned: Any) -> Any:
    return await returned


def no_program(name: str) -> BadInput:
    """A command whose program is not there."""
    return BadInput(
        f"there is no program {name!r}", expected="a program that can be started",
        where=f"{WHERE}.command", next_step="correct its name, or install it",
    )  # fmt: skip


def _function(target: str, setting: str) -> Callable[..., Any]:
    try:
        function = load_object(target)
    except Exception as error:  # whatever a foreign module does while it is imported
        raise BadInput(
            f"the function {target!r} cannot be imported: {type(error).__name__}: {error}",
            expected="module:function, in the folder that crl is started in, or installed",
            where=f"{WHERE}.{setting}",
            next_step="correct the name, or put the folder of the module on PYTHONPATH",
        ) from error
    if not callable(function):
        raise BadInput(f"{target!r} is {shown(function)}", expected="a function", where=f"{WHERE}.{setting}")
    return cast("Callable[..., Any]", function)


def _wanted(function: Callable[..., Any], target: str, columns: Mapping[str, Any]) -> Callable[[str], bool]:
    """Whether a reward function is given a value of some name. Raises BadInput for one that there is not."""
    parameters = inspect.signature(function).parameters.values()
    named = {each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)}
    for each in parameters:
        if each.name in named and each.default is each.empty and each.name not in {*_GIVEN, *columns}:
            raise BadInput(
                f"the function {target!r} asks for {each.name!r}, and the tasks have no such column",
                expected=f"arguments among {', '.join(dict.fromkeys([*_GIVEN, *columns]))}",
                where=f"{WHERE}.reward",
                next_step="correct the function, or name the column as it asks for it",
            )
    everything = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return lambda name: everything or name in named
