"""`kind: harness`: its settings, how a program is started for a task, and what it earned."""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import ConfigDict, Field

from crl.config.base import LONGEST_SECONDS, off
from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.config.registry import load_object
from crl.errors import BadInput
from crl.protocols import FreeText, Program, ProgramLimits, Start, Step, StopReason
from crl.records import OutsideRows, Row, Rules, table_of
from crl.worlds.harness.tasks import WHERE, Sides, Task, located, sides_of
from crl.worlds.json_files import shown
from crl.worlds.sandbox.bubblewrap import Bubblewrap
from crl.worlds.sandbox.interpreters import interpreter_of
from crl.worlds.sandbox.limits import Limits
from crl.worlds.sandbox.workplace import Workplace

FORM = FreeText("what the program asks for")
_PORT = 8000
"""Of the gateway, on the loopback of a sandbox."""
_SOLVED = 1e-9
"""What a sum may lack of `success_at` by rounding."""
Target = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]
_GIVEN = ("task", "messages", "folder", "exit_code")


class HarnessConfig(EnvironmentConfig):
    """Your agent as it is: a program, started for each episode, that calls the actor as an OpenAI-style service."""

    model_config = ConfigDict(title="harness")

    kind: Literal["harness"] = "harness"
    command: Target | Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] = Field(
        description="The program and its arguments, {task} standing for the task's text, or module:function, which is "
        "called with it. `python` is the interpreter that crl runs in; files are named from the folder that crl is "
        "started in. It starts in an empty folder with OPENAI_BASE_URL, OPENAI_API_KEY and CRL_TASK."
    )
    tasks: str = Field(min_length=1, description="File of tasks, one per row: .jsonl, .json, .csv, .parquet or .arrow.")
    prompt: str = Field("task", min_length=1, description="Column with the text of a task.")
    reward: Target | None = Field(
        None,
        description="module:function that is called when the program has ended: reward(task, messages, folder, "
        "exit_code, **columns), of which it names what it wants. It returns a number, or its named parts, which are "
        "added. null: none, where a judge gives the family's reward.",
    )
    success_at: float = Field(
        1.0, ge=-1_000_000, le=1_000_000, description="An episode whose reward is at least this counts as solved."
    )
    side: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        [],
        exclude_if=off,
        description="Names of models: calls to them are answered by the actor too, and recorded, and not trained. Any "
        "other name is the actor.",
    )
    max_calls: int = Field(64, ge=1, le=100_000, description="Calls of an episode that are answered.")
    max_tokens: int = Field(1_000_000, ge=1, le=1_000_000_000, description="Tokens that are sampled for an episode.")
    seconds: float = Field(
        1800.0, gt=0, le=LONGEST_SECONDS, description="Longest time of a program, while none of its calls is open."
    )
    call_seconds: float = Field(
        300.0,
        gt=0,
        le=LONGEST_SECONDS,
        description="Longest time until its next call, or its end: the others of its wave wait for it.",
    )
    isolate: bool = Field(
        False,
        exclude_if=off,
        description="Each program is in a sandbox (bubblewrap): it sees the system, the interpreter and the files that "
        "the command names, reaches no network but the actor, and may write its folder.",
    )
    test_size: float = Field(
        0.1, gt=0, lt=1, description="Share of the tasks that is held out, by a digest of their texts."
    )
    held_out_from: HeldOutFrom = 1_000_000

    @property
    def runs_programs(self) -> bool:
        """Nobody steps it."""
        return True

    @property
    def rewards_nothing(self) -> bool:
        """Whether there is no reward function."""
        return self.reward is None

    @property
    def keeps_steps(self) -> bool:
        """A program that has ended is not started again."""
        return True

    @property
    def held_out_levels(self) -> int | None:
        """The number of held-out tasks. Raises BadInput where they cannot be read."""
        return None if self.held_out_from is None else len(self.sides().held_out)

    @property
    def argv(self) -> list[str]:
        """The command with what it names found; {task} still stands for the task."""
        if isinstance(self.command, str):
            return [sys.executable, str(Path(__file__).with_name("call.py")), self.command]
        program, *arguments = self.command
        first = sys.executable if program in ("python", "python3") else _absolute(program)
        return [first, *map(_absolute, arguments)]

    def sides(self) -> Sides:
        """The tasks. Raises BadInput where they cannot be read."""
        return sides_of(self.tasks, self.prompt, self.test_size, held_out=self.held_out_from is not None)

    def data_files(self) -> Mapping[str, Path]:
        """The tasks, and the files that the command names."""
        named = [] if isinstance(self.command, str) else [word for word in self.command if _is_file(word)]
        return {self.tasks: located(self.tasks), **{name: Path(name).absolute() for name in named}}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The tasks, before they are played. Raises BadInput as :meth:`sides`."""
        sides = self.sides()
        tasks = {id(task): task for task in [*sides.training, *sides.held_out]}.values()
        rows = [ProgramTask(location=task.location, task=task.text) for task in tasks]
        yield OutsideRows(ProgramTask, table_of(ProgramTask, rows), self.tasks, "correct or remove the row")

    def make(self) -> HarnessEnvironment:
        """A wave of programs. Raises BadInput where the tasks or the reward cannot be used."""
        return HarnessEnvironment(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramTask(Row):
    """A row of a person's tasks, as Great Expectations looks at it before it is played."""

    table: ClassVar[str] = "program_tasks"
    rules: ClassVar[Rules] = Rules(key=("location",), filled=("location", "task"))
    location: Annotated[str, "file and row"]
    task: Annotated[str, "its text"]


class HarnessEnvironment:
    """A wave of programs (protocols `Environment`, `RunsPrograms`, `Leveled`). It cannot be stepped.

    Attributes:
        limits: what a program may use.
        home: where programs in sandboxes run.
        side: names of models whose calls are not trained.
    """

    def __init__(self, config: HarnessConfig) -> None:
        """Raises BadInput where the tasks, the program or the reward cannot be used."""
        self.config, self._sides = config, config.sides()
        self._tasks: list[Task] = []
        self.side = frozenset(config.side)
        self.limits = ProgramLimits(config.max_calls, config.max_tokens, config.seconds, config.call_seconds)
        self._argv = config.argv
        self.home: Path | None = None
        self._workplace: Workplace | None = None
        self._sandbox: Bubblewrap | None = None
        if config.isolate:
            self._isolate()
        elif shutil.which(self._argv[0]) is None:
            raise BadInput(
                f"there is no program {self._argv[0]!r}", expected="a program that can be started",
                where=f"{WHERE}.command", next_step="correct its name, or install it",
            )  # fmt: skip
        if isinstance(config.command, str):
            _function(config.command, "command")
        self._reward = None if config.reward is None else _function(config.reward, "reward")
        if self._reward is not None:
            self._wanted = _wanted(self._reward, str(config.reward), self._sides.training[0].columns)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """The tasks of some seeds; nothing is started yet."""
        self._tasks = [self._sides.of(seed, self.config.held_out_from) for seed in seeds]
        return [Start(task.text, "", FORM) for task in self._tasks]

    def _isolate(self) -> None:
        """Make ready for sandboxes. Raises BadInput where there are none here, or the program would not be there."""
        if isinstance(self.config.command, str):
            raise BadInput(
                f"isolate is true, and the command is the function {self.config.command}, whose module may import what "
                "a sandbox does not show",
                expected="a command that names its files",
                where=f"{WHERE}.command",
                next_step="write a file that calls it: [python, FILE]",
            )
        self._workplace = workplace = Workplace()
        self.home, tools = workplace.folder / "home", workplace.folder / "tools"
        self.home.mkdir(mode=0o711)
        tools.mkdir(mode=0o755)
        # Copies, for a user of the sandbox may have no way to where the files are.
        files = [Path(__file__).with_name("forward.py"), *map(Path, filter(_is_file, self._argv[1:]))]
        self._shown = {path: tools / f"{at}-{path.name}" for at, path in enumerate(files)}
        for path, copy in self._shown.items():
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o644)
        limits = Limits(seconds=min(self.config.seconds + self.config.max_calls, 86_400.0))
        self._sandbox = Bubblewrap(interpreter_of(None, "json"), limits, tools, [], "json")

    def _isolated(self, words: list[str], folder: Path, task: str) -> Program:
        assert self._sandbox is not None and self.home is not None
        seen = {copy: f"/crl/{copy.name}" for copy in self._shown.values()}
        named = {str(path): seen[copy] for path, copy in self._shown.items()}
        command = [words[0], *(named.get(word, word) for word in words[1:])]
        shown = {**seen, self.home / "gateway.sock": "/crl/gateway.sock"}
        inside = [sys.executable, "-I", "/crl/0-forward.py", str(_PORT), "/crl/gateway.sock", *command]
        argv, variables, user = self._sandbox.launched(self._sandbox.prepare(folder), inside, shown)
        return Program(tuple(argv), {**variables, "CRL_TASK": task}, _PORT, user)

    def program(self, slot: int, folder: Path) -> Program:
        """The command with the task of a slot."""
        task = self._tasks[slot].text
        words = [word.replace("{task}", task) for word in self._argv]
        if self._sandbox is not None:
            return self._isolated(words, folder, task)
        path = os.pathsep.join([str(Path.cwd()), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"CRL_TASK": task, "PYTHONPATH": path, "PYTHONHASHSEED": "0"}
        return Program(tuple(words), variables)

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        """What the reward function says of a program that has ended. Raises what it raises, and TypeError for what is
        no reward."""
        task = self._tasks[slot]
        if self._reward is None:  # a judge reads what was asked and answered
            return Step("", FreeText(""), True, "", True, False, 0.0, StopReason.failure)
        given = {"task": task.text, "messages": list(messages), "folder": folder, "exit_code": exit_code}
        values = {**task.columns, **given}
        returned = self._reward(**{name: value for name, value in values.items() if self._wanted(name)})
        if inspect.isawaitable(returned):
            returned = asyncio.run(_awaited(returned))
        parts = {str(name): float(value) for name, value in returned.items()} if isinstance(returned, Mapping) else {}
        reward = float(sum(parts.values()) if parts else returned)
        success = reward >= self.config.success_at - _SOLVED
        named = ", ".join(f"{name} {value:g}" for name, value in parts.items())
        text = f"Reward: {reward:g}" + (f" ({named})" if len(parts) > 1 else "")
        reason = StopReason.success if success else StopReason.failure
        return Step(text, FreeText(""), True, "", True, success, reward, reason, reward_parts=parts or None)

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Raises BadInput: nobody steps a program."""
        raise BadInput(
            "an episode of harness is a program that runs itself: it cannot be stepped",
            expected="a run, an evaluation, or `crl env check`",
            where=f"environment {self.config.kind}",
        )

    def oracle(self, slot: int) -> str | None:
        """Nobody knows what a program will ask."""
        return None

    def content(self, slot: int) -> str:
        """The task of a slot."""
        return self._tasks[slot].text

    def close(self) -> None:
        """Remove the folder of sandboxes."""
        self._tasks = []
        if self._workplace is not None:
            self._workplace.close()


async def _awaited(returned: Any) -> Any:
    return await returned


def _is_file(word: str) -> bool:
    with suppress(OSError, ValueError):
        return "{task}" not in word and Path(word).is_file()
    return False


def _absolute(word: str) -> str:
    """A word of a command; of a file that it names from here, the whole path."""
    return str(Path(word).absolute()) if _is_file(word) else word


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
