"""The rows of a data set as a text environment: its settings, and a wave of rows.

An episode is one completion, or with `answer` several turns of a conversation. What the actor writes counts as it is,
thoughts too, as in TRL; nothing of it is parsed here. It is scored once, at the end of its episode.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.base import unset
from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.asynchronous import run_all
from crl.envs.slots import NO_ACTION, Slots, stepped
from crl.faults import Fault, attempt, broke
from crl.protocols import FreeText, Start, Step, StopReason
from crl.records import OutsideRows, Row, Rules, table_of
from crl.worlds.dataset.rewards import Function, Messages, Rewards, Scored, Scoring
from crl.worlds.dataset.rows import Sides, Source, Task, located

FORM = FreeText("your answer, in your own words", whole=True)
_SOLVED = 1e-9
"""What a sum of weighted parts may lack of `success_at` by rounding."""
_TURNS = ("messages",)
Weight = Annotated[float, Field(ge=-1000, le=1000)]
Target = Annotated[str, Field(pattern=r"^[\w.]+:\w+$")]


class DatasetConfig(EnvironmentConfig):
    """A data set whose rows are tasks, and reward functions that score the answers, such as TRL's."""

    model_config = ConfigDict(title="data set")

    PATHS: ClassVar[tuple[str, ...]] = ("data",)

    kind: Literal["dataset"] = "dataset"
    data: str = Field(
        min_length=1,
        description="A file (.jsonl, .json, .csv, .parquet, .arrow), a folder by datasets.save_to_disk, or a Hub "
        "data set: owner/name or owner/name@revision.",
    )
    subset: str | None = Field(
        None, exclude_if=unset, description="Configuration of a Hub data set; null: the only one."
    )
    split: str | None = Field(None, exclude_if=unset, description="Split to train on; null: the only one, else train.")
    test_split: str | None = Field(
        None,
        exclude_if=unset,
        description="Held-out split; null: a share of the rows. Training rows with a prompt of this split are "
        "left out.",
    )
    test_size: float = Field(
        0.1,
        gt=0,
        lt=1,
        description="Held-out share of the rows, by a digest of the prompt, so that equal prompts stay together.",
    )
    prompt: str = Field(
        "prompt", min_length=1, description="Column of prompts: texts, or messages with role and content."
    )
    reward: Target | list[Target] | None = Field(
        None,
        description="Reward function, module:function, as TRL's GRPOTrainer takes it; the rewards of a list are "
        "added. null: a judge gives the reward.",
    )
    reward_weights: list[Weight] | None = Field(
        None, exclude_if=unset, description="Weights of several reward functions; null: 1 each."
    )
    success_at: float = Field(1.0, ge=-1_000_000, le=1_000_000, description="Least reward that counts as solved.")
    completion: str | None = Field(
        None,
        exclude_if=unset,
        description="Column of good completions for a warm start; null: none.",
    )
    answer: Target | None = Field(
        None,
        exclude_if=unset,
        description="module:function that answers the actor: f(messages, **columns) returns the next user "
        "message, or None at the end. null: an episode is one completion.",
    )
    max_turns: int = Field(1, ge=1, le=1000, description="Turns per episode; more than 1 needs `answer`.")
    goal: str = Field(
        "Answer the prompt.", min_length=1, description="What all tasks ask for, in words, for the extractor."
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _together(self) -> DatasetConfig:
        if self.reward_weights is not None and len(self.reward_weights) != len(self.rewards):
            raise ValueError(f"{len(self.reward_weights)} reward_weights for {len(self.rewards)} reward functions")
        if len(set(self.rewards)) != len(self.rewards) or self.reward == []:
            raise ValueError("reward names a function twice, or none")
        if self.reward is None and self.success_at != type(self).model_fields["success_at"].default:
            raise ValueError(
                f"success_at {self.success_at:g} is about reward functions, and there is none; a judge's is the "
                "family's reward.success_at"
            )
        if (self.answer is None) != (self.max_turns == 1):
            raise ValueError(
                "max_turns above 1 needs `answer`, the function that answers the actor, and `answer` needs max_turns "
                f"above 1; found answer {self.answer} and max_turns {self.max_turns}"
            )
        return self

    @property
    def rewards(self) -> list[str]:
        """The reward functions."""
        return [self.reward] if isinstance(self.reward, str) else self.reward or []

    @property
    def rewards_nothing(self) -> bool:
        """Whether there is no reward function."""
        return self.reward is None

    @property
    def ends_with_reward(self) -> bool:
        """Yes: after the last answer there is nothing else to see."""
        return True

    @property
    def held_out_levels(self) -> int | None:
        """The number of held-out rows. Raises BadInput where the data set cannot be read."""
        return None if self.held_out_from is None else len(self.sides().held_out)

    def sides(self) -> Sides:
        """The rows. Raises BadInput where they cannot be read."""
        return Source(
            self.data, self.subset, self.split, self.test_split, self.prompt, self.test_size,
            self.held_out_from is not None,
        ).sides()  # fmt: skip

    def data_files(self) -> dict[str, Path]:
        """The data set."""
        return {"data": located(self.data)}

    def outside_rows(self) -> Iterator[OutsideRows]:
        """The rows, before they are played. Raises BadInput as :meth:`sides`."""
        sides = self.sides()
        found = [
            TaskRow(location=task.location, prompt="\n".join(text for _, text in task.messages))
            for task in {id(task): task for task in [*sides.training, *sides.held_out]}.values()
        ]
        yield OutsideRows(TaskRow, table_of(TaskRow, found), self.data, "correct or remove the row")

    def make(self) -> DatasetEnvironment:
        """A wave of rows. Raises BadInput where the data set or a function cannot be used."""
        return DatasetEnvironment(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow(Row):
    """A row of a person's data set, as Great Expectations looks at it before it is played."""

    table: ClassVar[str] = "dataset_tasks"
    rules: ClassVar[Rules] = Rules(key=("location",), filled=("location", "prompt"))
    location: Annotated[str, "file and row"]
    prompt: Annotated[str, "text of its prompt"]


@dataclass
class _Slot:
    task: Task
    talk: Messages = field(default_factory=list)
    """What followed the prompt, turn by turn."""
    token_ids: list[int] = field(default_factory=list)
    """What the actor wrote of it."""
    turns: int = 0
    done: bool = False


class DatasetEnvironment(Slots[_Slot]):
    """A wave of rows (protocols `Environment`, `Leveled`). A function that raises, or returns no reward, ends its own
    episode with a reason; async ones of several slots wait side by side."""

    steps_together = True

    def __init__(self, config: DatasetConfig) -> None:
        """Raises BadInput where the data set or a function cannot be used."""
        super().__init__()
        self.config, self._sides = config, config.sides()
        columns = self._sides.training[0].columns
        weights = config.reward_weights or [1.0] * len(config.rewards)
        self._rewards = Rewards(config.rewards, weights, columns, config.prompt)
        self._answer = (
            None if config.answer is None else Function(config.answer, "answer", columns, config.prompt, _TURNS)
        )
        self.steps_apart = self._rewards.asynchronous

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with the row of seeds[i]."""
        self._slots = [_Slot(self._sides.of(seed, self.config.held_out_from)) for seed in seeds]
        starts = []
        for slot in self._slots:
            *before, (_, asked) = slot.task.messages
            starts.append(Start(self.config.goal, asked, FORM, messages=tuple(before)))
        return starts

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one answer in each slot given. Stepping a slot that is done raises RuntimeError."""
        slots = self._turns_of(actions)
        steps: dict[int, Step] = {}
        waiting: dict[int, Coroutine[Any, Any, Step]] = {}
        for index, slot in slots.items():
            text = actions[index]
            done = attempt(lambda slot=slot, text=text: self._begun(slot, text))  # type: ignore[misc]
            if isinstance(done, Coroutine):
                waiting[index] = done
            else:
                steps[index] = self._kept(slot, done)
        for index, awaited in run_all(waiting):
            steps[index] = self._kept(slots[index], awaited)
        return {index: steps[index] for index in actions}

    def _kept(self, slot: _Slot, step: Step | Fault) -> Step:
        if isinstance(step, Fault):
            slot.done = True
            return broke(step.code, step.details)
        return step

    def _begun(self, slot: _Slot, text: str | None) -> Step | Coroutine[Any, Any, Step]:
        """The step of a slot; a coroutine, where a function has to be awaited."""
        if text is None:
            over = slot.turns >= self.config.max_turns
            reason = StopReason.turn_limit if over else None
            return stepped(slot, reason, "", FORM, NO_ACTION, legal=False, reward=0.0)
        slot.talk.append({"role": "assistant", "content": str(text)})
        slot.token_ids += getattr(text, "token_ids", ())
        reply = self._reply(slot)
        if isinstance(reply, str):
            return self._answered(slot, reply)
        if reply is not None:
            return self._awaited(slot, reply)
        scoring = self._scoring(slot)
        return self._ended_later(slot, scoring) if scoring.waits else self._ended(slot, scoring.scored())

    def _reply(self, slot: _Slot) -> Any:
        """What the answering function returns; None where the episode is over."""
        if self._answer is None or slot.turns >= self.config.max_turns:
            return None
        messages = [{"role": role, "content": text} for role, text in slot.task.messages] + slot.talk
        reply = self._answer.of(deepcopy(slot.task.columns), {"messages": messages})
        if reply is None or isinstance(reply, str) or self._answer.asynchronous:
            return reply
        raise TypeError(f"{self._answer.name} returned a {type(reply).__name__}; expected a text, or None at the end")

    def _answered(self, slot: _Slot, reply: str) -> Step:
        slot.talk.append({"role": "user", "content": reply})
        return stepped(slot, None, reply, FORM, legal=True, reward=0.0)

    async def _awaited(self, slot: _Slot, waiting: Any) -> Step:
        reply = await waiting
        if reply is not None:
            return self._answered(slot, str(reply))
        return self._ended(slot, await self._scoring(slot).awaited())

    def _scoring(self, slot: _Slot) -> Scoring:
        talks = self._answer is not None or not isinstance(slot.task.prompt, str)
        completion: str | Messages = list(slot.talk) if talks else slot.talk[0]["content"]
        return self._rewards.begin(slot.task, completion, slot.token_ids)

    async def _ended_later(self, slot: _Slot, scoring: Scoring) -> Step:
        return self._ended(slot, await scoring.awaited())

    def _ended(self, slot: _Slot, scored: Scored) -> Step:
        if self.config.reward is None:  # a judge reads what was written
            return stepped(slot, StopReason.failure, "", FORM, legal=True, reward=0.0)
        success = scored.reward >= self.config.success_at - _SOLVED
        reason = StopReason.success if success else StopReason.failure
        parts = ", ".join(f"{name} {value:g}" for name, value in scored.parts.items())
        shown = f"Reward: {scored.reward:g}" + (f" ({parts})" if len(scored.parts) > 1 else "")
        step = stepped(slot, reason, shown, FORM, legal=True, reward=scored.reward)
        return replace(step, reward_parts=scored.parts)

    def oracle(self, slot: int) -> str | None:
        """The good completion of a slot's row; None where its data set has none, and when the episode is done."""
        state, column = self._slots[slot], self.config.completion
        if state.done or column is None:
            return None
        return _text(state.task.columns.get(column))

    def content(self, slot: int) -> str:
        """The prompt of a slot's row."""
        return repr(self._slots[slot].task.messages)


def _text(completion: Any) -> str | None:
    """A completion as text: of messages, those of the assistant."""
    if isinstance(completion, list):
        texts = [str(each.get("content")) for each in completion if each.get("role") == "assistant"]
        return texts[0] if texts else None
    return None if completion is None else str(completion)
