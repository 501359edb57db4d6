"""Asking the experience model: prompts that fit, one output each, and the rows of what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from crl.protocols import Policy
from crl.recipes.dreamgym.config import EXPERIENCE, PREDICT, config_of
from crl.recipes.dreamgym.form import OK, Predicted, read
from crl.recipes.dreamgym.prompts import Situation, fitted
from crl.recipes.dreamgym.rows import Prediction, Transition
from crl.records import Generation
from crl.rounds.context import StageContext
from crl.rounds.weights import recorded, weights_of
from crl.run.seeds import number_of
from crl.text.answers import after_thoughts
from crl.text.outputs import Messages, Output, Prompt, prepared, room_for_prompt, sample_outputs

PROMPT_TOO_LONG = "prompt_too_long"


@dataclass(frozen=True, slots=True)
class Asked:
    """One step to predict."""

    name: str
    """Id of the step: `<episode>-<turn>`, with what tells it from other predictions of it."""
    family: str
    episode_id: str
    situation: Situation
    actions: tuple[str, ...]
    """What can be done, by name."""
    neighbors: list[Transition]
    rewards: tuple[float, float] = (-1e6, 1e6)
    """Least and largest reward that an episode can have."""
    held_to: Transition | None = None


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of it."""

    asked: Asked
    shown: list[Transition]
    """Neighbors that fitted into the prompt."""
    reason_code: str
    predicted: Predicted | None
    generation: Generation


class ExperienceModel:
    """The experience model of a stage, with the weights that the stage reads."""

    def __init__(self, ctx: StageContext) -> None:
        self._ctx, self._weights = ctx, weights_of(ctx, EXPERIENCE)
        self._policy: Policy = ctx.services.policy(EXPERIENCE, self._weights)
        self._role = ctx.method.role(EXPERIENCE)
        self._room = room_for_prompt(self._policy, self._role)

    def predict(self, asked: Sequence[Asked]) -> list[Answered]:
        """One prediction per step, in their order; all of them are sampled as one batch."""
        prompts = [self._fitted(each) for each in asked]
        outputs = self._sampled([prompt for prompt, _ in prompts])
        answered = []
        for each, (_, shown), output in zip(asked, prompts, outputs, strict=True):
            reason_code, text = text_or_reason(output)
            predicted = None
            if text is not None:
                reason_code, predicted = read(text, each.actions, each.rewards)
            record = recorded(self._ctx, output, EXPERIENCE, "predict", self._weights)
            answered.append(Answered(each, shown, reason_code, predicted, record))
        return answered

    def write(
        self, name: str, messages: Sequence[tuple[str, Messages]], kind: str
    ) -> list[tuple[str, str | None, Generation]]:
        """(reason code, text, token record) of one output per (id, messages)."""
        prompts = [self._prompt(f"{name}-{each}", each_messages) for each, each_messages in messages]
        outputs = self._sampled(prompts)
        return [
            (*text_or_reason(output), recorded(self._ctx, output, EXPERIENCE, kind, self._weights))
            for output in outputs
        ]

    def _fitted(self, asked: Asked) -> tuple[Prompt, list[Transition]]:
        """The prompt with as many neighbors as fit, the nearest ones."""
        template, chat = self._ctx.method.prompts_of(asked.family)[PREDICT], self._policy.chat
        messages, _, neighbors = fitted(chat, template, asked.situation, asked.neighbors, self._room)
        return self._prompt(f"p-{asked.name}", messages), neighbors

    def _prompt(self, name: str, messages: Messages) -> Prompt:
        return prepared(self._policy, name, messages, self._room, seed=number_of(self._ctx.seed(name)))

    def _sampled(self, prompts: Sequence[Prompt]) -> list[Output]:
        batch = config_of(self._ctx.method).predict.batch
        with self._ctx.timed("predict", len(prompts)):
            return sample_outputs(self._policy, prompts, self._role.sampling, batch=batch)


def text_or_reason(output: Output) -> tuple[str, str | None]:
    """(`ok`, text) of an output, or (why there is none, None)."""
    if output.sampled is None:
        return PROMPT_TOO_LONG, None
    if output.truncated:
        return "truncated", None
    text = after_thoughts(output.text, begun=output.thinking)
    return ("unfinished_thought", None) if text is None else (OK, text)


def same_observation(one: str, other: str) -> bool:
    """Whether two observations say the same: white space around them and at line ends does not count."""
    return [line.rstrip() for line in one.strip().split("\n")] == [line.rstrip() for line in other.strip().split("\n")]


def same_reward(one: float, other: float) -> bool:
    """Whether two rewards are equal as far as six digits say."""
    return abs(one - other) <= 1e-5 * max(1.0, abs(one), abs(other))


def prediction_row(answered: Answered, round_number: int) -> Prediction:
    """The row of a prediction, compared with the truth where it is held to one."""
    asked, predicted, true = answered.asked, answered.predicted, answered.asked.held_to
    agrees = outcome = error = None
    if true is not None:
        agrees = predicted is not None and same_observation(predicted.observation, true.next_observation)
        outcome = (
            predicted is not None and predicted.outcome == true.outcome and same_reward(predicted.reward, true.reward)
        )
        error = abs((0.0 if predicted is None else predicted.reward) - true.reward)
    return Prediction(
        prediction_id=f"p-{asked.name}",
        round=round_number,
        family=asked.family,
        episode_id=asked.episode_id,
        turn=asked.situation.turn,
        held_to=None if true is None else true.transition_id,
        reason_code=answered.reason_code,
        neighbors=[row.transition_id for row in answered.shown],
        outcome=None if predicted is None else predicted.outcome,
        reward=None if predicted is None else predicted.reward,
        observation_agrees=agrees,
        outcome_agrees=outcome,
        reward_error=error,
        generation_id=answered.generation.generation_id,
    )
