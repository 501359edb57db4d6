"""What every game owes the protocol, whatever its class does."""

from __future__ import annotations

from random import Random

from crl.envs.game import Game, Move
from crl.protocols import StopReason


class Climb(Game):
    """Climb to the third step; each step is worth a third."""

    kind: str = "tests.unit.envs.test_game:Climb"
    max_turns: int = 4

    def begin(self, random: Random) -> list[int]:
        return [0]

    def goal(self, state: list[int]) -> str:
        return "Climb three steps."

    def look(self, state: list[int]) -> str:
        return f"step {state[0]}"

    def actions(self, state: list[int]) -> tuple[str, ...]:
        return ("up", "jump", "rest")

    def act(self, state: list[int], action: str) -> Move:
        if action == "jump":
            return Move("Your knees hurt.", legal=False)
        if action == "rest":
            return Move()
        state[0] += 1
        return Move(success=state[0] == 3, reward=state[0] / 3)


def test_an_illegal_action_leaves_what_the_episode_is_worth() -> None:
    game = Climb().make()
    game.reset_many([0, 0, 0])
    assert game.step_many({0: "jump"})[0].reward == 0.0, "before anything was done it is worth nothing"
    for slot in (1, 2):
        assert [game.step_many({slot: "up"})[slot].reward for _ in range(2)] == [1 / 3, 2 / 3]
    assert [game.step_many({1: action})[1].reward for action in ("jump", None)] == [2 / 3, 2 / 3]
    last = [game.step_many({2: action})[2] for action in ("rest", "fly")][-1]
    assert (last.reward, last.legal, last.stop_reason) == (0.0, False, StopReason.turn_limit)
