"""`kind: verifiers`: its settings, the tasks that its interpreter lists, and what its rubric says of an episode."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, JsonValue

from crl.errors import BadInput
from crl.protocols import Program, Step
from crl.records import OutsideRows
from crl.worlds.programs.environment import ProgramConfig, ProgramEnvironment, ended, outside_rows
from crl.worlds.programs.tasks import WHERE, Sides, split
from crl.worlds.verifiers.play import OUTCOME

SETUP = "python3 -m venv .venv-verifiers && .venv-verifiers/bin/pip install verifiers==0.3.1"
"""Sets up its interpreter: verifiers does not install beside this project's pins."""
PLAY = Path(__file__).with_name("play.py")
_LAST = 8
"""Lines of what the interpreter printed that an error shows."""


class VerifiersConfig(ProgramConfig):
    """An environment of verifiers, with its tasks, prompts, tools and rubric, in its own interpreter."""

    model_config = ConfigDict(title="verifiers")

    kind: Literal["verifiers"] = "verifiers"
    id: str = Field(
        min_length=1,
        description="What vf.load_environment loads: a module of its interpreter, or of the folder where crl starts.",
    )
    args: dict[str, JsonValue] = Field({}, description="Arguments of load_environment.")
    python: str = Field(".venv-verifiers/bin/python", min_length=1, description="Interpreter that has verifiers.")
    success_at: float | None = Field(
        None,
        ge=-1_000_000,
        le=1_000_000,
        description="Least reward that counts as solved; null: the environment's pass_threshold.",
    )

    @property
    def spec(self) -> dict[str, Any]:
        """What its interpreter is told of the environment."""
        return {"id": self.id, "args": self.args, "folder": str(Path.cwd())}

    @property
    def argv(self) -> tuple[str, str]:
        """What a specification follows."""
        return str(Path(self.python).expanduser().absolute()), str(PLAY)

    def listed(self) -> Listed:
        """Its tasks. Raises BadInput where its interpreter cannot list them."""
        return _listed(self.argv, json.dumps(self.spec, sort_keys=True), self.id, self.seconds)

    def sides(self) -> Sides[VerifiersTask]:
        """Its data sets: where it has one for evaluation, that is held out. Raises BadInput as :meth:`listed`."""
        found, held_out = self.listed(), self.held_out_from is not None
        if not (held_out and found.train and found.evaluation):
            tasks = found.train or found.evaluation
            return split(tasks, lambda task: bytes.fromhex(task.digest), self.test_size, held_out=held_out)
        known = {task.digest for task in found.train}
        return Sides(found.train, [task for task in found.evaluation if task.digest not in known])

    def data_files(self) -> Mapping[str, Sequence[Path]]:
        """The module of the environment, where it is one of the folder that crl is started in."""
        name = self.id.replace("-", "_").rpartition("/")[2].replace(".", "/")
        files = sorted(path for path in (Path(f"{name}.py"), *Path(name).rglob("*.py")) if path.is_file())
        return {"id": [path.absolute() for path in files]} if files else {}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The tasks, before they are played. Raises BadInput as :meth:`sides`."""
        sides = self.sides()
        tasks = {(task.split, task.index): task for task in (*sides.training, *sides.held_out)}.values()
        return outside_rows(((f"{task.split}, row {task.index}", task.text) for task in tasks), self.id)

    def make(self) -> VerifiersEnvironment:
        """A wave of its episodes. Raises BadInput where its interpreter or the environment cannot be used."""
        return VerifiersEnvironment(self)


@dataclass(frozen=True, slots=True)
class VerifiersTask:
    """A row of a data set of verifiers."""

    split: str
    index: int
    text: str
    digest: str


@dataclass(frozen=True)
class Listed:
    """What an environment of verifiers plays."""

    train: Sequence[VerifiersTask]
    evaluation: Sequence[VerifiersTask]
    solved: float
    """Its pass_threshold."""


class VerifiersEnvironment(ProgramEnvironment[VerifiersTask]):
    """A wave of programs that verifiers plays (protocols `Environment`, `RunsPrograms`, `Leveled`)."""

    def __init__(self, config: VerifiersConfig) -> None:
        """Raises BadInput where its interpreter or the environment cannot be used."""
        super().__init__(config)
        self.config = config
        self._solved = config.listed().solved if config.success_at is None else config.success_at

    def program(self, slot: int, folder: Path) -> Program:
        """One row, played by its interpreter."""
        task = self.tasks[slot]
        spec = {**self.config.spec, "split": task.split, "index": task.index, "digest": task.digest}
        outside = {name: value for name, value in os.environ.items() if name.startswith("OPENAI_")}
        return Program((*self.config.argv, json.dumps(spec)), {**_VARIABLES, "CRL_OUTSIDE": json.dumps(outside)})

    def outcome(self, slot: int, messages: Sequence[Mapping[str, Any]], folder: Path, exit_code: int) -> Step:
        """What the rubric says. Raises OSError where the program wrote nothing of it."""
        outcome = json.loads((folder / OUTCOME).read_bytes())
        return ended(outcome["reward"], outcome["parts"], self._solved)

    def content(self, slot: int) -> str:
        """All that the row of a slot holds."""
        return self.tasks[slot].digest


_MISSING = ("No module named 'verifiers", "module 'verifiers' has no attribute")
_VARIABLES = {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}


@lru_cache(maxsize=8)
def _listed(argv: tuple[str, str], spec: str, name: str, seconds: float) -> Listed:
    with tempfile.TemporaryDirectory(prefix="crl-verifiers-") as folder:
        to = Path(folder, "tasks.json")
        command = [*argv, json.dumps({**json.loads(spec), "list": str(to)})]
        try:
            done = subprocess.run(
                command, env={**os.environ, **_VARIABLES}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, timeout=seconds, check=False, cwd=folder,
            )  # fmt: skip
        except OSError as error:
            raise _unusable(f"the interpreter {argv[0]} cannot be started: {error.strerror}", "python", SETUP) from None
        except subprocess.TimeoutExpired:
            said = f"verifiers listed no tasks of {name} within {seconds:g} seconds"
            raise _unusable(said, "seconds", "raise environment.seconds, or take a smaller data set") from None
        if done.returncode:
            said = "\n".join(done.stdout.decode(errors="replace").strip().splitlines()[-_LAST:])
            if any(missing in said for missing in _MISSING):
                raise _unusable(f"the interpreter {argv[0]} has no verifiers of 0.3: {said}", "python", SETUP)
            raise _unusable(
                f"verifiers cannot load {name}:\n{said}", "id", "correct id or args, or install its package"
            )
        data = json.loads(to.read_bytes())
    if data["groups"]:
        raise _unusable(
            f"the rubric of {name} compares the episodes of a group, which are processes apart here", "id",
            "score each episode by itself, or compare groups with a judge (docs/judge.md)",
        )  # fmt: skip
    train, evaluation = (
        [VerifiersTask(split, at, *row) for at, row in enumerate(data[split] or [])] for split in ("train", "eval")
    )
    if not train and not evaluation:
        raise _unusable(f"the data sets of {name} hold no row", "args", "ask for some rows")
    return Listed(train, evaluation, data["solved"])


def _unusable(found: str, setting: str, next_step: str) -> BadInput:
    expected = "an environment of verifiers 0.3, and an interpreter that it is installed in"
    return BadInput(found, expected=expected, where=f"{WHERE}.{setting}", next_step=next_step)
