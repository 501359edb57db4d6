"""A walk of 60 turns that says more than a context of 2,048 tokens holds."""

from __future__ import annotations

import random
from typing import Literal

from crl.envs.game import Game, Move

WAYS = ("north", "south", "east", "west")


class LongWalk(Game):
    """Each turn shows which way is right; an episode is worth the share of right turns. Only the turn limit ends it."""

    kind: Literal["tests.longwalk:LongWalk"] = "tests.longwalk:LongWalk"

    def begin(self, random: random.Random) -> dict[str, list[str]]:
        return {"ways": [random.choice(WAYS) for _ in range(self.max_turns)], "went": []}

    def goal(self, state: dict[str, list[str]]) -> str:
        return "Walk on."

    def look(self, state: dict[str, list[str]]) -> str:
        at = len(state["went"])
        seen = "wall " * (9 + at % 5)
        return f"Turn {at}: you see {seen}and a sign: {state['ways'][min(at, self.max_turns - 1)]}."

    def actions(self, state: dict[str, list[str]]) -> tuple[str, ...]:
        return WAYS

    def act(self, state: dict[str, list[str]], action: str) -> Move:
        right = action == state["ways"][len(state["went"])]
        state["went"].append(action)
        over = len(state["went"]) == self.max_turns
        return Move("Yes." if right else "No.", turn_reward=float(right) / self.max_turns, over=over)

    def solve(self, state: dict[str, list[str]]) -> str:
        return state["ways"][len(state["went"])]
