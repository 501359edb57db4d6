"""Software engineering as a batched text environment: a wave of tasks, each with a work tree of its own.

A tree is made when the first tool is called and removed when the episode is over. Only `submit` is graded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pydantic import ConfigDict

from crl.envs.slots import ENDINGS, Slots
from crl.errors import BadInput
from crl.paths import possible_path
from crl.protocols import Lesson, Start, Step, StopReason
from crl.records import Episode, OutsideRows, Turn
from crl.worlds.sandbox.bubblewrap import TESTBED, Workspace
from crl.worlds.sandbox.interpreters import interpreter_of
from crl.worlds.sandbox.limits import in_words
from crl.worlds.sandbox.supervised import cut
from crl.worlds.sandbox.workplace import Workplace, remove
from crl.worlds.swe.calls import BASH, EDITOR, FORM, TOOLS, BadCall, Call, call_of, written
from crl.worlds.swe.editor import Editor, Refused
from crl.worlds.swe.grader import Grader
from crl.worlds.swe.oracle import calls_of, lesson_of
from crl.worlds.swe.repository import Repositories, copy
from crl.worlds.swe.rows import Row, outside_rows
from crl.worlds.swe.sandboxes import sandbox_of
from crl.worlds.swe.settings import SweSettings
from crl.worlds.swe.sources import source_of, tasks_of

_SHOWN_NAMES = 40
NO_OUTPUT = "(no output)"


class SweConfig(SweSettings):
    """Software engineering in SWE-Bench's form: repair a repository with three tools; hidden tests decide."""

    model_config = ConfigDict(title="SWE")

    @property
    def keeps_steps(self) -> bool:
        """True: a command may take a minute, and say something else the second time."""
        return True

    @property
    def proves(self) -> bool:
        """True: each row has a reference fix."""
        return True

    @property
    def held_out_levels(self) -> int | None:
        """How many tasks are held out; None where their file cannot be read."""
        if self.held_out_from is None:
            return None
        try:
            return len(tasks_of(self).evaluation)
        except BadInput:
            return None

    def data_files(self) -> dict[str, Path]:
        """The files of the tasks, unless they are those that ship."""
        named = {"rows": self.rows, "held_out_rows": self.held_out_rows}
        return {name: possible_path(path, "the rows", home=True) for name, path in named.items() if path is not None}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The tasks of files, side by side. Raises BadInput where they cannot be read."""
        if self.rows is not None:
            tasks = tasks_of(self)
            yield outside_rows([*tasks.training, *tasks.evaluation], self.rows)

    def make(self) -> SweEnvironment:
        """A wave of tasks. Raises BadInput where rows, a repository, the interpreter or the sandbox are missing."""
        return SweEnvironment(self)


class ImpossibleTask(Exception):
    """Nobody can win a task: an episode of it is no failure of the actor, and counts as broken."""

    code = "environment_impossible_task"


@dataclass
class _Slot:
    row: Row
    turns: int = 0
    calls: int = 0
    """Turns that called a tool."""
    done: bool = False
    workspace: Workspace | None = None
    editor: Editor | None = None
    plan: list[str] | None = None
    """What the oracle does, made when it is first asked; it is good for an episode that the oracle plays from the
    beginning."""


class SweEnvironment(Slots[_Slot]):
    """A wave of tasks (protocols `Environment`, `Leveled`, `Instructive`). The reward is 1 where all named
    tests pass after `submit`, else 0; until then, and at the turn limit, 0.

    A call that cannot be understood spends a turn and changes nothing. What a command or the editor says of a mistake
    is an observation as any other. A tree that is over its limits ends its episode as a failure.
    """

    def __init__(self, config: SweConfig) -> None:
        """Raises BadInput where rows, a repository, the interpreter or the sandbox are missing."""
        super().__init__()
        self.config = config
        interpreter = None if config.sandbox == "container" else interpreter_of(config.interpreter)
        self._workplace = Workplace()
        try:
            self._source = source_of(config, self._workplace.folder)
            self.repositories = Repositories(self._source.repository, self._source.cache)
            self._sandbox = sandbox_of(config, interpreter, self._workplace.folder, self._source.hidden)
        except BaseException:
            self._workplace.close()
            raise
        self.tasks = self._source.tasks
        self._grader = Grader(
            self.repositories, self._sandbox, config.test_limits,
            (config.interpreter or "python") if interpreter is None else interpreter.path,
            config.interpreter is not None if config.plugins is None else config.plugins, self._workplace.folder,
            () if interpreter is None else interpreter.sources, "" if interpreter is None else interpreter.state,
        )  # fmt: skip
        self._as_text = config.calls == "text"
        self._actions = FORM if self._as_text else TOOLS

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with the task of seeds[i].

        Raises BadInput where the repository or a diff of a row does not fit.
        """
        self._clear()
        self._slots = [_Slot(self.tasks.of(seed)) for seed in seeds]
        return [self._start(slot.row) for slot in self._slots]

    def _start(self, row: Row) -> Start:
        self._grader.prepare(row)
        base = self.repositories.base(row)
        names = sorted(
            f"{each.name}/" if each.is_dir() else each.name for each in base.iterdir() if each.name != ".git"
        )
        more = ", …" if len(names) > _SHOWN_NAMES else ""
        observation = f"The repository is in {TESTBED}: {', '.join(names[:_SHOWN_NAMES])}{more}"
        return Start(row.problem_statement.strip(), observation, self._actions)

    def items(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Each task, and what makes its trees."""
        for row in (*self.tasks.evaluation, *self.tasks.training):
            yield row.instance_id, partial(self._start, row)

    def _step(self, slot: _Slot, action: str | None) -> Step:
        try:
            call = call_of(action, as_text=self._as_text)
        except BadCall as wrong:
            return self._answer(slot, "", feedback=str(wrong))
        slot.calls += 1
        if call.name == BASH:
            return self._bash(slot, call)
        if call.name == EDITOR:
            return self._edit(slot, call)
        verdict = self._grader.of(slot.row, self._place(slot).tree)
        if verdict.impossible:
            self._over(slot)
            raise ImpossibleTask(f"{slot.row.instance_id}: {verdict.impossible}")
        reason = StopReason.success if verdict.solved else StopReason.failure
        return self._answer(slot, f"Submitted. {verdict.in_words(slot.row)}", reason=reason)

    def _bash(self, slot: _Slot, call: Call) -> Step:
        ran = self._sandbox.run(self._place(slot), call.arguments["command"], longest=self.config.max_output_characters)
        said = [ran.output.rstrip("\n")] if ran.output.strip() else []
        if ran.ended:
            said.append(f"[The command was stopped: {in_words(self.config.limits, ran.ended)}.]")
        elif ran.code != 0:
            said.append(f"[Exit code: {ran.code}]")
        reason = StopReason.failure if ran.ended == "disk" else None
        return self._answer(slot, "\n".join(said) or NO_OUTPUT, reason=reason)

    def _edit(self, slot: _Slot, call: Call) -> Step:
        place = self._place(slot)
        if slot.editor is None:
            slot.editor = Editor(place.tree, self.config.max_output_characters, place.owner)
        try:
            said = slot.editor.run(call.arguments)
        except Refused as refused:
            said = f"Error: {cut(str(refused), self.config.max_output_characters)}"
        return self._answer(slot, said)

    def _answer(self, slot: _Slot, observation: str, *, feedback: str = "", reason: StopReason | None = None) -> Step:
        if reason is None and slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        if reason is not None:
            self._over(slot)
        if reason is StopReason.turn_limit:
            observation = f"{observation}\n{ENDINGS[reason]}".strip()
        success = reason is StopReason.success
        return Step(
            observation or "Nothing was done.",
            self._actions,
            not feedback,
            feedback,
            slot.done,
            success,
            float(success),
            reason,
        )

    def _place(self, slot: _Slot) -> Workspace:
        """The work tree of a slot, made where it has none."""
        if slot.workspace is None:
            tree = self._workplace.tree()
            try:
                copy(self.repositories.base(slot.row), tree)
            except OSError:
                remove(tree)  # of an episode that ends here, and needs its room no longer
                raise
            slot.workspace = self._sandbox.prepare(tree, slot.row.image)
        return slot.workspace

    def _over(self, slot: _Slot) -> None:
        slot.done = True
        if slot.workspace is not None:
            remove(slot.workspace.tree)
            slot.workspace, slot.editor = None, None

    def oracle(self, slot: int) -> str | None:
        """The next call of one who knows the reference fix; None where the episode is over."""
        state = self._slots[slot]
        if state.done:
            return None
        if state.plan is None:
            base, fixed = self.repositories.base(state.row), self.repositories.fixed(state.row)
            calls = calls_of(state.row.patch, base, fixed, self.config.max_turns)
            state.plan = [written(call, as_text=self._as_text) for call in calls]
        return state.plan[min(state.calls, len(state.plan) - 1)]

    def content(self, slot: int) -> str:
        """What the task of a slot is about: its repository, and what is wrong."""
        return self._slots[slot].row.content

    def proofs(self, *, kept: bool = False) -> Iterator[tuple[str, str | None]]:
        """Each task, and why its reference fix does not pass; empty where it does."""
        for row in (*self.tasks.training, *self.tasks.evaluation):
            try:
                graded = self._grader.kept(row) if kept else self._grader.reference(row)
            except BadInput as error:
                yield row.instance_id, str(error)
                continue
            fault = None if graded is None else graded.fault(row)
            yield row.instance_id, f"{fault}; pytest says:\n{graded.output.strip()}" if graded and fault else fault

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What an episode teaches, for demonstrations."""
        return lesson_of(episode, turns, as_text=self._as_text)

    def _clear(self) -> None:
        for slot in self._slots:
            self._over(slot)
        self._slots = []

    def close(self) -> None:
        """Remove every tree."""
        self._clear()
        self._workplace.close()
