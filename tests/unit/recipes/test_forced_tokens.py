"""Turns that leave no choice (`sampling.constrain: actions`): their tokens are written, though none is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from crl.config import Experiment, SamplingConfig
from crl.policies.turn import Turn as SampledTurn
from crl.protocols import Sampled, Start, Step, StopReason
from crl.records import Episode, Evaluation, Generation, Metric, Turn
from tests.unit.recipes.played import Played, Policy, Services, Session, act, experiment
from tests.unit.rollout.fakes import END, CharacterChat

THINGS = ("apple", "bell", "crown")


class Shelf:
    """Take one thing a turn until none is left: the last turn has one action."""

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        self._left = [list(THINGS) for _ in seeds]
        return [Start("Clear the shelf.", f"Shelf {seed}.", THINGS) for seed in seeds]

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        steps = {}
        for slot, action in actions.items():
            left = self._left[slot]
            assert action is not None
            left.remove(action)
            won = not left
            reason = StopReason.success if won else None
            steps[slot] = Step("Taken.", tuple(left), True, "", won, won, float(won), reason)
        return steps


class Chat(CharacterChat):
    def answer(self, text: str) -> list[int]:
        return [*map(ord, text), END]


class Choosing(Session):
    """Draws any of the answers that a row may give."""

    def sample(
        self,
        rows: Sequence[int],
        sampling: SamplingConfig,
        answers: Mapping[int, Any] | None = None,
    ) -> dict[int, Sampled]:
        assert answers is not None
        found = {}
        for row in rows:
            turn = SampledTurn(sampling.max_new_tokens, answers[row])
            self._ids[row] += turn.follow()
            while turn.stop_reason is None:
                index = int(self._streams[row].choice(turn.options))
                self._ids[row] += turn.draw(index, -0.5, frozenset({END}))
            found[row] = turn.sampled()
        return found


class Chooser(Policy):
    def __init__(self) -> None:
        super().__init__(act)
        self.chat = Chat()

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Choosing:
        return Choosing(prompts, self._answer, seeds)


class Shelves(Services):
    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self._policies = {"actor": Chooser()}

    def environment(self, family: str, round_number: int) -> Shelf:
        return Shelf()


def test_a_turn_without_a_choice_is_recorded_with_the_tokens_it_wrote(tmp_path: Path) -> None:
    sampling = {"max_new_tokens": 8, "constrain": "actions"}
    made = experiment(method__recipe__kind="baseline", method__roles__actor__sampling=sampling)
    played = Played(tmp_path, made, 1, Shelves(made))
    turns = played.rows(Turn, "collect", 1)
    records = {row.generation_id: row for row in played.rows(Generation, "collect", 1)}
    episodes = played.rows(Episode, "collect", 1)
    assert episodes and all(each.success and each.turns == 3 for each in episodes)
    for each in episodes:
        record = records[each.generation_ids[0]]
        wrote = sum(len(turn.output) + 1 for turn in turns if turn.episode_id == each.episode_id)
        assert sum(record.loss_mask) == 2, "two choices tell three things apart"
        assert wrote == len("applebellcrown") + 3
        assert (each.tokens_sampled, each.tokens_read) == (wrote, len(record.token_ids) - wrote)
    metrics = {row.name: row.value for row in played.rows(Metric, "health", 1)}
    assert metrics["actor_tokens_sampled"] == sum(each.tokens_sampled for each in episodes)
    held_out = [each for each in played.rows(Evaluation, "evaluate", 1) if each.condition == "without_bank"]
    assert held_out and {each.tokens_sampled for each in held_out} == {wrote}
