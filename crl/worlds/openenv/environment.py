"""A wave of sessions with OpenEnv servers, played as a game is (`Games`). A session is used again unless it broke."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, InstanceOf, model_validator

from crl.envs.asynchronous import hold
from crl.envs.game import Game, Games, Move
from crl.envs.slots import ENDINGS
from crl.protocols import Actions, Start, StopReason
from crl.worlds.openenv.forms import Refused, ServerFault, shown
from crl.worlds.openenv.servers import ServerConfig, Servers, Session, lent

_SOLVED = 1e-9
"""What a sum of rewards may lack of `success_at` by rounding."""
_Argument = str | Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[float, Field(ge=-1e300, le=1e300)] | bool


class OpenEnvConfig(ServerConfig):
    """An OpenEnv environment, at an address or on a server that crl starts."""

    model_config = ConfigDict(title="OpenEnv")

    kind: Literal["openenv"] = "openenv"
    reset: dict[str, _Argument] = Field({}, description="Arguments of `reset` beside the seed: {difficulty: easy}")
    goal: str | None = Field(None, min_length=1, description="The goal in words; null: the server's description.")
    observation: list[str] | None = Field(
        None, min_length=1, description="Fields of the observation that the actor reads; null: all but metadata."
    )
    legal_actions: str | None = Field(None, description="Field of the observation with the legal actions.")
    reward: Literal["sum", "last"] = Field(
        "sum", description="An episode's reward: the sum over its steps, or the last one."
    )
    success_at: float = Field(
        1.0,
        ge=-1_000_000,
        le=1_000_000,
        description="Least reward of a solved episode.",
    )
    max_turns: int = Field(30, ge=1, le=10_000, description="Turns after which an episode is lost.")

    @model_validator(mode="after")
    def _together(self) -> OpenEnvConfig:
        if (self.command is None) == (self.address is None):
            raise ValueError(f"openenv needs command or address; found {'none' if self.command is None else 'both'}")
        if "{port}" not in (self.command or "{port}"):
            raise ValueError(f"command has to hold {{port}}, at which its server has to listen; found {self.command}")
        if self.held_out_from is not None:
            raise ValueError("held_out_from has to be null: an OpenEnv server does not say which level an episode is")
        if "seed" in self.reset:
            raise ValueError("reset may not hold seed: each episode has its own")
        return self

    @property
    def keeps_steps(self) -> bool:
        """A server may take long, and another one answers after a resume."""
        return True

    @property
    def checked_turns(self) -> int:
        """A server that ignores its seed may show it after some turns."""
        return 6

    def make(self) -> OpenEnvEnvironment:
        """A wave of sessions. Its first reset starts a server, or meets it."""
        return OpenEnvEnvironment(self)


@dataclass
class _State:
    session: Session
    servers: Servers
    seen: str = ""
    actions: Actions = ()
    reward: float = 0.0


class _Play(Game):
    """What a server plays, as `Games` asks for it."""

    kind: str = "openenv"
    config: InstanceOf[OpenEnvConfig]

    def goal(self, state: _State) -> str:
        return self.config.goal or state.servers.about

    def look(self, state: _State) -> str:
        return state.seen

    def actions(self, state: _State) -> Actions:
        return state.actions

    async def act(self, state: _State, action: str) -> Move:
        try:
            answer = await state.session.ask("step", state.servers.form.sent(action))
        except Refused as error:
            return Move(str(error), legal=False)
        earned, over, add = answer.get("reward") or 0.0, bool(answer.get("done")), self.config.reward == "sum"
        if not isinstance(earned, int | float) or not math.isfinite(earned):
            raise ServerFault(f"the reward is {earned!r:.100}, expected a finite number", "environment_reward")
        state.reward = float(earned) + (state.reward if add else 0.0)
        self.see(state, answer, over=over)
        success = over and state.reward >= self.config.success_at - _SOLVED
        if over:
            state.seen = f"{state.seen}\n{ENDINGS[StopReason.success if success else StopReason.failure]}".lstrip()
        return Move(over=over, success=success, reward=state.reward, turn_reward=float(earned) if add else None)

    def see(self, state: _State, answer: Mapping[str, Any], *, over: bool) -> None:
        legal, observation, form = self.config.legal_actions, answer["observation"], state.servers.form
        state.seen = shown(observation, self.config.observation, legal)
        if not over:
            state.actions = form.actions if legal is None else form.listed(observation.get(legal))


class OpenEnvEnvironment(Games):
    """A wave of sessions (protocol `Environment`). Slots wait for their server side by side; one that breaks, hangs or
    is lost ends its own episode."""

    def __init__(self, config: OpenEnvConfig) -> None:
        self._play = _Play(max_turns=config.max_turns, config=config)
        super().__init__(self._play)
        self._servers: Servers | None = None
        self._leave: Callable[[], None] = lambda: None

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seeds[i].

        Raises BadInput where the server cannot be started, and EnvironmentBroken where it cannot be reached.
        """
        self._give_back()
        if self._servers is None:
            self._servers, self._leave = hold(lent(self._play.config))
        return super().reset_many(seeds)

    def _give_back(self) -> None:
        for state in (slot.state for slot in self._slots):
            if isinstance(state, _State):
                state.servers.idle.append(state.session)
        self._slots = []

    async def _begin(self, seed: int) -> _State:
        assert self._servers is not None
        session, answer = await self._servers.session("reset", {"seed": seed, **self._play.config.reset})
        state = _State(session, self._servers)
        try:
            if answer.get("done"):
                raise ServerFault("the episode is over before its first action")
            self._play.see(state, answer, over=False)
        except BaseException:
            self._servers.idle.append(session)
            raise
        return state

    def close(self) -> None:
        """Leave the sessions, and the servers."""
        self._give_back()
        self._leave()
        self._servers, self._leave = None, lambda: None
