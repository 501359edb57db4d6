"""MiniGrid and BabyAI: the mission and what the agent sees, in words; actions by name.

What is seen is the package's own partial view, told from where the agent stands: `a red key 2 ahead and 1 left`. A
level's content is the whole grid, the agent and the mission (`crl/envs/levels.py`). The oracle of BabyAI ids is the
package's bot, which knows the rules and explores as a player does; MiniGrid's own ids have none.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field

from crl.config.environments import HeldOutFrom
from crl.envs.levels import Drawn, Levels
from crl.errors import BadInput
from crl.protocols import Actions
from crl.worlds.bridges.packages import WHERE, BridgeConfig, check_known, package
from crl.worlds.bridges.wave import Episode, LeveledWave, Outcome, seed_of

ACTIONS: Mapping[str, str] = {
    "left": "turn left",
    "right": "turn right",
    "forward": "go forward",
    "pickup": "pick up",
    "drop": "drop",
    "toggle": "toggle",
    "done": "done",
}
"""What the package's actions are called here."""

_RULES = "You are on a grid and see what is in front of you. Toggle opens and closes the door or box directly ahead."
_DRAWS = 200
"""Draws of a seed after which there is no such level; of many levels one in four is held out."""
_NOTHING = {"unseen", "empty", "wall", "floor", "agent"}
"""What is not listed; of walls only the next one in each direction is told."""


class MiniGridConfig(BridgeConfig):
    """A registered MiniGrid or BabyAI environment, its view in words."""

    model_config = ConfigDict(title="MiniGrid")

    PACKAGES: ClassVar[tuple[str, ...]] = ("minigrid",)

    kind: Literal["minigrid"] = "minigrid"
    id: str = Field("BabyAI-GoToObj-v0", description="Registered id: MiniGrid-… or BabyAI-….")
    max_turns: int = Field(
        64, ge=1, le=10_000, description="Turns after which an episode is lost; the game's own limit holds, too."
    )
    reward: Literal["success", "native"] = Field(
        "success", description="success: 1 or 0; native: the package's, which falls with each turn."
    )
    held_out_from: HeldOutFrom = 1_000_000

    def make(self) -> LeveledWave:
        """A wave of episodes. Raises BadInput for an unknown id and where the package is missing."""
        games = _Games(self)
        return LeveledWave(games.begin, max_turns=self.max_turns, free=games.close)


class _Games:
    """Instances of one id, one per slot, and the level of every seed."""

    def __init__(self, config: MiniGridConfig) -> None:
        self._config = config
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        package("minigrid", extra="minigrid")
        self._gymnasium = package("gymnasium", extra="minigrid")
        self._words = package("minigrid.core.constants", extra="minigrid")
        known = [name for name in self._gymnasium.registry if name.startswith(("MiniGrid-", "BabyAI-"))]
        check_known(config.id, known, "MiniGrid id", field="id")
        self._pool: list[Any] = []
        self._surveyor = self._instance()
        self._levels = Levels(
            self._draws,
            held_out_from=config.held_out_from,
            fewest_moves=1,
            draws=_DRAWS,
            where=f"MiniGrid id {config.id}",
            next_step="choose an id with more levels, or set held_out_from: null: then its evaluation is on levels "
            "that training knows",
        )

    def _instance(self) -> Any:
        try:
            return self._gymnasium.make(self._config.id, disable_env_checker=True).unwrapped
        except Exception as error:  # a few ids need packages that MiniGrid does not
            raise BadInput(
                f"{self._config.id!r} cannot be made: {type(error).__name__}: {error}",
                expected="an id that needs nothing further",
                where=f"{WHERE}.id",
                next_step="install what the message names, or choose another id",
            ) from error

    def _draws(self, seed: int) -> Iterator[Drawn]:
        for attempt in count():
            number = seed_of(seed, attempt)
            env = self._surveyor
            env.reset(seed=number)
            here = tuple(int(value) for value in env.agent_pos)
            grid = env.grid.encode().tolist()
            yield Drawn(number, f"{env.mission}\n{here} {int(env.agent_dir)}\n{grid}")

    def begin(self, slot: int, seed: int) -> _Walk:
        """The episode of a seed, in the instance of its slot."""
        level = self._levels.of(seed)
        while len(self._pool) <= slot:
            self._pool.append(self._instance())
        return _Walk(self._pool[slot], level, self._words, native=self._config.reward == "native")

    def close(self) -> None:
        for env in [self._surveyor, *self._pool]:
            env.close()


class _Walk(Episode):
    """One episode."""

    def __init__(self, env: Any, level: Drawn, words: Any, *, native: bool) -> None:
        self._env, self._level, self._native = env, level, native
        self._kinds: Mapping[int, str] = words.IDX_TO_OBJECT
        self._colors: Mapping[int, str] = words.IDX_TO_COLOR
        self._states = {number: name for name, number in words.STATE_TO_IDX.items()}
        self._seen, _ = env.reset(seed=level.state)
        self.goal = f"{_RULES} Your mission: {self._seen['mission']}."
        playable = list(env.actions)[: int(env.action_space.n)]
        self._moves = {ACTIONS.get(action.name, action.name): action for action in playable}
        self._steps = 0
        self._bot: Any = None
        self._bot_step, self._last, self._advice = -1, None, None  # type: int, Any, str | None

    @property
    def content(self) -> str:
        return self._level.content

    def actions(self) -> Actions:
        return tuple(self._moves)

    def act(self, action: str) -> Outcome:
        self._last = self._moves[action]
        self._seen, reward, terminated, truncated, _ = self._env.step(self._last)
        self._steps += 1
        success = bool(terminated) and float(reward) > 0
        worth = float(reward) if self._native else float(success)
        return Outcome(
            over=bool(terminated or truncated),
            success=success,
            reward=worth,
            out_of_turns=bool(truncated and not terminated),
        )

    def observation(self) -> str:
        carried = self._env.carrying
        lines = [] if carried is None else [f"You carry {_a(f'{carried.color} {carried.type}')}."]
        return "\n".join([*self._view(), *lines])

    def _view(self) -> list[str]:
        image = self._seen["image"]
        width, height = int(image.shape[0]), int(image.shape[1])
        # The agent is at the bottom of its view, in the middle, and looks up.
        middle, bottom = width // 2, height - 1
        things = []
        for x in range(width):
            for y in range(height):
                kind = self._kinds[int(image[x, y, 0])]
                if kind in _NOTHING or (x, y) == (middle, bottom):
                    continue
                ahead, right = bottom - y, x - middle
                what = _a(self._thing(kind, image[x, y]))
                things.append((ahead + abs(right), ahead, right, f"{what} {_place(ahead, right)}"))
        seen = [text for *_, text in sorted(things)]
        return [*(["You see " + ", ".join(seen) + "."] if seen else ["You see nothing."]), self._walls(image)]

    def _thing(self, kind: str, cell: Any) -> str:
        if kind in ("goal", "lava"):
            return kind
        name = f"{self._colors[int(cell[1])]} {kind}"
        return f"{self._states[int(cell[2])]} {name}" if kind == "door" else name

    def _walls(self, image: Any) -> str:
        """How far one can go straight ahead, left and right before a wall, as far as that is seen."""
        middle, bottom = int(image.shape[0]) // 2, int(image.shape[1]) - 1
        said = []
        for name, dx, dy in (("ahead", 0, -1), ("left", -1, 0), ("right", 1, 0)):
            x, y, distance = middle + dx, bottom + dy, 1
            while 0 <= x < image.shape[0] and 0 <= y < image.shape[1]:
                kind = self._kinds[int(image[x, y, 0])]
                if kind in ("wall", "unseen"):
                    if kind == "wall":
                        said.append(f"{distance} {name}")
                    break
                x, y, distance = x + dx, y + dy, distance + 1
        return "Walls: " + (", ".join(said) if said else "none near") + "."

    def oracle(self) -> str | None:
        if getattr(self._env, "instrs", None) is None:
            return None
        try:
            if self._bot is None or self._bot_step < self._steps - 1:
                # It follows every move; where it missed some it has to begin anew.
                bot = package("minigrid.utils.baby_ai_bot", extra="minigrid").BabyAIBot
                self._bot, action = bot(self._env), None
                action = self._bot.replan()
            elif self._bot_step == self._steps - 1:
                action = self._bot.replan(self._last)
            else:
                return self._advice
        except Exception:  # levels that the bot cannot solve, by its own documentation
            self._bot = None
            return None
        self._bot_step = self._steps
        self._advice = next((name for name, move in self._moves.items() if move == action), None)
        return self._advice


def _a(thing: str) -> str:
    return thing if thing == "lava" else f"{'an' if thing[0] in 'aeiou' else 'a'} {thing}"


def _place(ahead: int, right: int) -> str:
    sideways = f"{abs(right)} {'right' if right > 0 else 'left'}" if right else ""
    return " and ".join(filter(None, [f"{ahead} ahead" if ahead else "", sideways]))
