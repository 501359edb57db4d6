"""MiniHack: any registered id that can be built here, as a batched text environment.

NLE instances are kept in a pool by slot, because making one costs ten times a reset. An episode is deterministic in
its seed: both NetHack generators are seeded without reseeding, effects of the wall clock (moon phase, Friday the 13th)
are fixed, and Python's global generator, from which some tasks pick a level, is seeded around each reset. What the
agent reads, also at the end of a game, is built in `screen`, its action names in `actions`; the demonstrator is
`oracle`. Which level a seed means, held out or not, is said by `levels`, over layouts that `level` draws.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib
import random
import re
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.envs.levels import FewestMoves, Levels, check_winnable
from crl.envs.slots import ENDINGS, NO_ACTION, Slots, refusal, stepped, with_ending
from crl.errors import BadInput
from crl.protocols import Lesson, Start, Step, StopReason
from crl.records import Episode, Turn
from crl.worlds.minihack.actions import USES_ITEMS, action_names, answers
from crl.worlds.minihack.lessons import lesson_of
from crl.worlds.minihack.level import NethackLevel, Surveyor
from crl.worlds.minihack.oracle import Walker
from crl.worlds.minihack.screen import KeysWithoutEnd, LastScreen, Screen, describe, read_screen

_STARTS_WITH_WELCOME = re.compile(r"(?i)hello|welcome|you are lucky|be careful")
_FULL_LIST = 12
"""With more actions than so many an invalid one is not answered with all of them: the prompt has named them."""
_TEMPLATES = frozenset({"MiniHack-Navigation-Custom-v0", "MiniHack-Skill-Custom-v0"})
"""Ids under which MiniHack registers classes for levels of one's own: they have no level."""
_SEEDED = threading.RLock()
_DRAWS = 1000
"""Draws of a seed after which its task has no such level; a draw takes about a millisecond."""


class MiniHackConfig(EnvironmentConfig):
    """A registered MiniHack task."""

    model_config = ConfigDict(title="MiniHack")

    PACKAGES: ClassVar[tuple[str, ...]] = ("minihack", "nle")

    kind: Literal["minihack"] = "minihack"
    id: str = Field("MiniHack-Room-Ultimate-5x5-v0", description="Registered MiniHack id.")
    max_turns: int = Field(10, ge=1, le=1000, description="Turns after which an episode is lost.")
    hints: bool = Field(
        True,
        description="Describe where things are (`> is 2 east`); false: list the symbols, with prompts of your own.",
    )
    held_out_from: HeldOutFrom = 1_000_000
    held_out_moves: FewestMoves = 3

    @model_validator(mode="after")
    def _moves(self) -> MiniHackConfig:
        check_winnable(self.held_out_from, self.held_out_moves, self.max_turns)
        return self

    def make(self) -> MiniHackEnvironment:
        """A wave of MiniHack episodes. Raises BadInput for an unknown id, a missing package or level file."""
        return MiniHackEnvironment(self)


def _registry() -> Mapping[str, Any]:
    """MiniHack's registered ids with their specifications; BadInput where the package is missing or broken."""
    try:
        with warnings.catch_warnings():
            # minihack 1.0.2 imports pkg_resources, which warns about its own deprecation.
            warnings.simplefilter("ignore")
            importlib.import_module("minihack")
        registration = importlib.import_module("gymnasium.envs.registration")
    except ImportError as error:
        missing = "setuptools<81 (minihack imports pkg_resources)" if error.name == "pkg_resources" else "minihack"
        raise BadInput(
            f"MiniHack cannot be imported: {error}",
            expected="the packages minihack and nle",
            where="method.families[].environment",
            next_step=f"install {missing}: pip install 'minihack==1.0.2' 'nle==1.3.0' 'setuptools<81'",
        ) from error
    return {name: spec for name, spec in registration.registry.items() if name.startswith("MiniHack-")}


@contextlib.contextmanager
def _python_random(seed: int) -> Iterator[None]:
    """Seed Python's global generator and give it back as it was: some tasks choose a level with it. One at a time:
    slots may be reset in threads."""
    with _SEEDED:
        state = random.getstate()
        random.seed(seed)
        try:
            yield
        finally:
            random.setstate(state)


def _build(config: MiniHackConfig, changed: Callable[[type], type] = lambda task: task) -> Any:
    """One NLE instance of the task, of its class as `changed`; BadInput where it is unknown or cannot be built."""
    known = _registry()
    where = "method.families[].environment.id"
    if config.id not in known:
        close = difflib.get_close_matches(config.id, known, n=4, cutoff=0.4)
        raise BadInput(
            f"unknown MiniHack task {config.id!r}",
            expected="one of " + ", ".join(close) if close else f"one of the {len(known)} registered ids",
            where=where,
            next_step="correct the id",
        )
    if config.id in _TEMPLATES:
        raise BadInput(
            f"MiniHack task {config.id!r} cannot be built: it is a template for levels of one's own and has none",
            expected="a task with a level",
            where=where,
            next_step="register a task with your level (gymnasium.register) in your own package, or choose another id",
        )
    spec = known[config.id]
    creator = changed(importlib.import_module("gymnasium.envs.registration").load_env_creator(spec.entry_point))
    # The turn limit is counted here (invalid actions spend turns that NLE never sees), so NLE's own must not bite.
    arguments = {**spec.kwargs, "max_episode_steps": config.max_turns + 1, "fix_moon_phase": True}
    try:
        with _python_random(0):
            env = creator(**arguments)
    except Exception as error:
        said = " ".join(str(error).split()) or f"{type(error).__name__} in {config.id}'s own constructor"
        raise BadInput(
            f"MiniHack task {config.id!r} cannot be built: {said}",
            expected="a task that needs no further files or arguments",
            where=where,
            next_step="install what the message names, or choose another id",
        ) from error
    if hasattr(env, "minigrid_env"):
        env.minigrid_env = _SeededMiniGrid(env.minigrid_env)
    return env


class _SeededMiniGrid:
    """The MiniGrid environment that draws a task's rooms, as MiniHack 1.0.2 uses one: it has `seed`, which newer
    versions have not; there `reset` takes the seed."""

    def __init__(self, env: Any) -> None:
        self._env, self._drawn_from = env, 0

    @property
    def unwrapped(self) -> Any:
        return self._env.unwrapped

    def seed(self, seed: int) -> None:
        self._drawn_from = seed

    def reset(self) -> Any:
        return self._env.reset(seed=self._drawn_from)


def _seed(env: Any, seed: int) -> None:
    """Start the game of a seed of NetHack's generators."""
    with _python_random(seed):
        env.seed(core=seed, disp=seed, reseed=False)
        env.reset()


@dataclass
class _Slot:
    index: int
    env: Any
    level: NethackLevel
    ending: LastScreen
    screen: Screen
    moves: dict[str, int]
    """Playable actions while the game asks nothing."""
    actions: dict[str, int]
    """Legal actions now."""
    first_inventory: frozenset[str]
    greeting: str
    turns: int = 0
    done: bool = False
    walker: Walker = field(default_factory=Walker)


class MiniHackEnvironment(Slots[_Slot]):
    """A wave of MiniHack episodes (protocol `Environment`). Reward is 1 for reaching the task's goal, else 0.

    Death and `max_turns` are failures; an action that is not legal spends a turn and leaves the game as it is. An
    exception inside NLE ends its slot with an error code; the instance is closed, and replaced at the next reset.
    """

    def __init__(self, config: MiniHackConfig) -> None:
        super().__init__()
        self.config = config
        self.goal = goal_of(config.id)
        self._seeks_stairs = "(>)" in self.goal
        self._pool: list[tuple[Any, LastScreen] | None] = [self._instance()]
        self._shows_all_items = any(action.name in USES_ITEMS for action in self._pool[0][0].actions)  # type: ignore[index]
        self._surveyor = Surveyor(lambda changed: _build(config, changed), _seed)
        self._levels = Levels(
            self._surveyor.draws,
            held_out_from=config.held_out_from,
            fewest_moves=config.held_out_moves,
            draws=_DRAWS,
            where=f"MiniHack task {config.id}",
        )
        if not action_names(self._pool[0][0].actions):  # type: ignore[index]
            self.close()
            raise BadInput(
                f"MiniHack task {config.id!r} registers no action that can be offered by name",
                expected="compass moves or commands such as pick up, apply, eat; keys that only show a screen, change "
                "a setting or begin a move of two keys are not offered",
                where="method.families[].environment.id",
                next_step="register the task with other actions, or choose another id",
            )

    def _instance(self) -> tuple[Any, LastScreen]:
        env = _build(self.config)
        return env, LastScreen(env, _screen)

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seed i. Raises BadInput where no level is on a seed's side."""
        while len(self._pool) < len(seeds):
            self._pool.append(None)
        self._slots = []
        starts = []
        for index, seed in enumerate(seeds):
            env, ending = self._pool[index] = self._pool[index] or self._instance()
            slot = self._reset(index, env, ending, self._levels.of(seed))
            self._slots.append(slot)
            starts.append(Start(self.goal, self._describe(slot), tuple(slot.actions)))
        return starts

    def _reset(self, index: int, env: Any, ending: LastScreen, level: NethackLevel) -> _Slot:
        ending.rest()
        _seed(env, level.seed)
        screen = _screen(env)
        moves = action_names(env.actions)
        greeting = screen.message if _STARTS_WITH_WELCOME.match(screen.message) else ""
        first_inventory = frozenset(screen.inventory.values())
        slot = _Slot(index, env, level, ending, screen, moves, moves, first_inventory, greeting)
        slot.walker.see(screen)
        return slot

    def _step(self, slot: _Slot, action: str | None) -> Step:
        legal = action in slot.actions
        success, over, reason = False, False, None
        if action is not None and legal:
            try:
                success, over = _press(slot, slot.actions[action])
                if not over:
                    slot.screen = _screen(slot.env)
            except Exception as error:
                # The game is in an unknown state: this slot ends with a reason, the others play on.
                slot.done = True
                self._pool[slot.index] = None
                with contextlib.suppress(Exception):
                    slot.env.close()
                code = f"environment_{type(error).__name__}"
                return Step("", (), True, "", True, False, 0.0, StopReason.error, code)
        if over:
            reason = StopReason.success if success else StopReason.failure
        elif slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        feedback = "" if legal else self._refusal(slot)
        if reason is not None:
            return stepped(slot, reason, self._ended(slot, reason, over=over), (), feedback, legal=legal)
        slot.walker.see(slot.screen)
        slot.actions = slot.moves
        if slot.screen.asks:
            slot.actions = answers(slot.screen.message, slot.env.actions) or slot.moves
        observation = self._describe(slot)
        if slot.actions is not slot.moves:
            # A prompt lists the actions of the first turn: these are others.
            observation += "\nAnswer with one of: " + ", ".join(slot.actions) + "."
        return stepped(slot, None, observation, tuple(slot.actions), feedback, legal=legal)

    def _refusal(self, slot: _Slot) -> str:
        return NO_ACTION if len(slot.actions) > _FULL_LIST else refusal(slot.actions)

    def _ended(self, slot: _Slot, reason: StopReason, *, over: bool) -> str:
        """What the last action did, as far as NLE still showed it, and how the episode ended."""
        if over:
            screen = slot.ending.screen()
            if screen is None:
                return ENDINGS[reason]
            slot.screen = screen
        # On the stairs the agent hides them: what is in sight would say that there are none.
        seeks_stairs = self._seeks_stairs and reason is not StopReason.success
        return with_ending(self._describe(slot, seeks_stairs=seeks_stairs), reason)

    def _describe(self, slot: _Slot, *, seeks_stairs: bool | None = None) -> str:
        items = slot.screen.inventory
        if self._shows_all_items:
            shown = [f"{letter} {line}" for letter, line in items.items()]
        elif "pick up" in slot.moves:
            # What a rogue starts with is of no use in these tasks: only what was picked up is shown.
            shown = [line for line in items.values() if line not in slot.first_inventory]
        else:
            shown = []
        return describe(
            slot.screen,
            seeks_stairs=self._seeks_stairs if seeks_stairs is None else seeks_stairs,
            hints=self.config.hints,
            items=shown,
            greeting=slot.greeting,
        )

    def oracle(self, slot: int) -> str | None:
        """A good next move toward the stairs from what is known of the level; None where no way is known."""
        state = self._slots[slot]
        if state.done or state.screen.asks or not self._seeks_stairs:
            return None
        return state.walker.move(state.screen, tuple(state.actions))

    def lesson(self, episode: Episode, turns: Sequence[Turn]) -> Lesson:
        """What a game teaches, for demonstrations (protocol `Instructive`)."""
        return lesson_of(episode, turns)

    def content(self, slot: int) -> str:
        """The layout of a slot's level: walls, stairs and start."""
        return self._slots[slot].level.content

    def close(self) -> None:
        """End all NLE instances."""
        for instance in self._pool:
            if instance is not None:
                instance[0].close()
        self._surveyor.close()
        self._pool, self._slots = [], []


def _press(slot: _Slot, action: int) -> tuple[bool, bool]:
    """Do an action: (whether the goal is reached, whether the game is over)."""
    slot.ending.begin()
    try:
        _, reward, over, _, information = slot.env.step(action)
    except KeysWithoutEnd:
        # What the task waits for, such as a door that opens, has not happened: the game waits for the next command.
        return False, False
    # The task's own end, not its shaped reward; Memento ends so on a wrong turn too, with a reward below 0.
    return int(information["end_status"]) == 2 and reward > 0, over


def _screen(env: Any) -> Screen:
    # NLE returns only the observation keys that a task asked for; the instance holds all of them.
    return read_screen(dict(zip(env._observation_keys, env.last_observation, strict=True)))


_STAIRS = "Reach the stairs down (>)."
_GOALS: tuple[tuple[str, str], ...] = (
    ("KeyRoom", "Pick up the key (`pick up` where it is), `apply` it next to the closed door, then reach the stairs "
                "down (>)."),
    ("River", "Push boulders (`), by walking into them, into the river until you can cross it, then reach the stairs "
              "down (>)."),
    ("CorridorBattle", "Survive the monsters and reach the stairs down (>)."),
    ("ExploreMaze", "Eat the apples on the way and reach the stairs down (>)."),
    ("Memento", "The message at the start tells which way is right: free the grid bug and kill it, never step "
                "on the squeaky board."),
    ("Boxoban", "Push every boulder (`) onto a fountain ({)."),
    (r"Sokoban\d[ab]", "Fill every pit (^) by pushing a boulder (`) into it, then reach the stairs down (>)."),
    ("Eat", "Eat the apple."),
    ("Pray", "Pray on the altar."),
    ("Sink", "Quaff from the sink."),
    ("Wield", "Wield the dagger."),
    ("Wear", "Wear the robe."),
    ("PutOn", "Put on the amulet."),
    ("Zap", "Zap the wand."),
    ("Read", "Read the scroll."),
    ("ClosedDoor", "Open the door and reach the stairs down (>)."),
    ("LockedDoor", "Kick the locked door open and reach the stairs down (>)."),
    ("WoD-Easy", "Kill the minotaur with the wand of death."),
    ("WoD", "Kill the minotaur with the wand of death and reach the stairs down (>)."),
    ("Levitate", "Float in the air: pick up what lies in the room, and wear, put on or quaff it."),
    ("Freeze-Lava", "Freeze a way across and reach the stairs down (>)."),
    ("Freeze", "Let a bolt of cold bounce off a wall: pick up the wand and `zap` it, or the horn and `apply` it."),
    ("LavaCross", "Get over the lava unharmed and reach the stairs down (>)."),
)  # fmt: skip
_SYMBOLS = " On the map @ is you, . is floor, < is the stairs up, where you began, blank is unknown."


def goal_of(task_id: str) -> str:
    """What a task asks for, in words; constant for an id, so that all rows of a wave share it.

    A task is won on the stairs down, unless its class rewards something else (a message, a kill, something eaten): then
    the goal says that, and names no stairs, which such a level may not have.
    """
    rest = task_id.removeprefix("MiniHack-")
    for pattern, text in _GOALS:
        if re.match(pattern + r"(-|$)", rest):
            return text + _SYMBOLS
    return _STAIRS + _SYMBOLS
