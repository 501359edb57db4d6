"""An OpenEnv server's environment as a text environment: its settings, and a wave of sessions.

A slot keeps its session from episode to episode and loses it where it broke. Rewards are the server's, step by step. A
server whose episodes do not follow from their seeds is refused before the first one: the same actions after two resets
with one seed have to show the same.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.base import LONGEST_SECONDS, unset
from crl.config.environments import EnvironmentConfig
from crl.envs.asynchronous import run, run_all
from crl.envs.slots import ENDINGS, NO_ACTION, Slots, refusal, stepped
from crl.errors import BadInput
from crl.faults import Fault, broke
from crl.protocols import Actions, Start, Step, StopReason
from crl.worlds.openenv.forms import Form, Unreadable, calls_tools, form_of, form_of_tools, shown
from crl.worlds.openenv.servers import WHERE, Launch, Rejected, ServerFault, Servers, Session, borrowed, returned

_GOAL = "Do what the environment asks for."
_TRIED = 6
"""Turns of an episode that is played twice to see whether it follows from its seed."""
_SOLVED = 1e-9
"""What a sum of rewards may lack of `success_at` by rounding."""
_Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]
_Argument = str | Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[float, Field(ge=-1e300, le=1e300)] | bool


class OpenEnvConfig(EnvironmentConfig):
    """An environment of OpenEnv, played by its server: on loopback, in a container, or at an address."""

    model_config = ConfigDict(title="OpenEnv")

    kind: Literal["openenv"] = "openenv"
    command: str | None = Field(
        None,
        exclude_if=unset,
        description="Starts a server on loopback, with {port} where its port belongs: "
        ".venv-openenv/bin/python server.py {port}",
    )
    image: str | None = Field(
        None, exclude_if=unset, description="A container image, which docker or podman runs: its server is started."
    )
    port: int = Field(8000, ge=1, le=65_535, description="Port of the server in a container.")
    address: str | None = Field(
        None, exclude_if=unset, pattern="^https?://", description="A server that runs: http://127.0.0.1:8000"
    )
    reset: dict[str, _Argument] = Field(
        default_factory=dict, description="What `reset` is given beside the seed: {difficulty: easy}"
    )
    goal: str | None = Field(
        None,
        exclude_if=unset,
        min_length=1,
        description="What the actor is to do, in words; null: the description that the server gives of itself.",
    )
    observation: list[str] | None = Field(
        None,
        exclude_if=unset,
        min_length=1,
        description="Fields of an observation that the actor reads; null: all but metadata.",
    )
    legal_actions: str | None = Field(
        None, exclude_if=unset, description="Field of an observation that lists the actions that are legal now."
    )
    form: str | None = Field(
        None, exclude_if=unset, min_length=1, description="What an action looks like, in words; null: as its type says."
    )
    reward: Literal["sum", "last"] = Field(
        "sum", description="What an episode is worth: the sum of the rewards of its steps, or that of its last one."
    )
    success_at: float = Field(
        1.0,
        ge=-1_000_000,
        le=1_000_000,
        description="An episode that the server ends is solved where its reward is at least this.",
    )
    max_turns: int = Field(30, ge=1, le=10_000, description="Turns before an episode counts as failed.")
    answer_seconds: _Seconds = Field(
        60.0, description="Longest wait for an answer; an episode that waits longer ends with an error."
    )
    start_seconds: _Seconds = Field(120.0, description="Longest wait for a server that is started.")
    servers: int = Field(
        16,
        ge=1,
        le=1024,
        description="Most servers of `command` or `image` that run side by side, where one does not take all episodes "
        "of a wave.",
    )

    @model_validator(mode="after")
    def _one_server(self) -> OpenEnvConfig:
        given = [name for name in ("command", "image", "address") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"openenv needs one of command, image and address; found {', '.join(given) if given else 'none'}"
            )
        if self.command is not None and "{port}" not in self.command:
            raise ValueError("command has to hold {port}: the server has to listen on the port that it is given")
        if self.held_out_from is not None:
            raise ValueError("held_out_from has to be null: an OpenEnv server does not say which level an episode is")
        if "seed" in self.reset:
            raise ValueError("reset may not hold seed: each episode has its own")
        return self

    @property
    def keeps_steps(self) -> bool:
        """True: a server may take long, and another one answers after a resume."""
        return True

    def launch(self) -> Launch:
        """Where its servers come from."""
        return Launch(
            self.command, self.image, self.port, self.address, self.start_seconds, self.answer_seconds, self.servers
        )

    def make(self) -> OpenEnvEnvironment:
        """A wave of sessions. Its first reset starts a server, or meets it."""
        return OpenEnvEnvironment(self)


@dataclass
class _Slot:
    actions: Actions = ()
    observation: str = ""
    reward: float = 0.0
    turns: int = 0
    done: bool = False


class OpenEnvEnvironment(Slots[_Slot]):
    """A wave of sessions (protocol `Environment`). Slots wait for their server side by side; one that breaks, hangs or
    is lost ends its own episode."""

    steps_together = steps_apart = True

    def __init__(self, config: OpenEnvConfig) -> None:
        super().__init__()
        self.config = config
        self._servers: Servers | None = None
        self._form = Form(())
        self._goal = ""
        self._sessions: dict[int, Session] = {}

    def reset_many(self, seeds: Sequence[int]) -> list[Start]:
        """Start `len(seeds)` episodes, slot i with seeds[i].

        Raises BadInput where the server cannot be started, or does not follow its seeds, and EnvironmentBroken where it
        cannot be reached.
        """
        if self._servers is None:
            self._servers = borrowed(self.config.launch())
        self._servers.one()
        self._learn(self._servers)
        if not self._servers.seeded:
            self._check_seed(seeds[0])
            self._servers.seeded = True
        return self._started(seeds)

    def _learn(self, servers: Servers) -> None:
        """The goal, and the form of the actions."""
        if self._goal:
            return
        action = servers.schema["action"]
        self._form = run(self._tools()) if calls_tools(action) else form_of(action, self.config.form)
        self._goal = self.config.goal or servers.about or _GOAL

    async def _tools(self) -> Form:
        answer = await self._begun(0, {"type": "reset", "data": {"seed": 0, **self.config.reset}})
        answer = await self._sessions[0].ask({"type": "step", "data": {"type": "list_tools"}})
        return form_of_tools(answer["observation"]["tools"])

    def _check_seed(self, seed: int) -> None:
        """Raise BadInput where two episodes of one seed differ under the same actions."""
        from crl.envs.check.walks import walked

        first, again = (walked(_Trial(self), [seed], batch=1, turns=_TRIED).walks[0] for _ in range(2))
        if (difference := first.difference(again)) is not None:
            raise BadInput(
                f"the server ignores its seed: two episodes that were reset with it differ. {difference}",
                expected="an environment whose `reset` takes `seed`, and draws everything from it",
                where=WHERE,
                next_step="have reset(self, seed=None, episode_id=None, **kwargs) draw from random.Random(seed); leave "
                "out what counts or tells the time with `observation`",
            )

    def _started(self, seeds: Sequence[int]) -> list[Start]:
        for slot in [slot for slot in self._sessions if slot >= len(seeds)]:
            self._leave(slot)
        self._slots = [_Slot() for _ in seeds]
        begun = dict(run_all({slot: self._start(slot, seed) for slot, seed in enumerate(seeds)}))
        return [self._start_of(slot, begun[slot]) for slot in range(len(seeds))]

    def _start_of(self, slot: int, begun: Start | Fault) -> Start:
        if isinstance(begun, Start):
            return begun
        self._slots[slot].done = True
        self._leave(slot)
        return Start.failed(begun.code, begun.details)

    async def _start(self, index: int, seed: int) -> Start:
        slot = self._slots[index]
        answer = await self._begun(index, {"type": "reset", "data": {"seed": seed, **self.config.reset}})
        if answer.get("done"):
            raise ValueError("the episode is over before its first action")
        self._see(slot, answer["observation"])
        return Start(self._goal, slot.observation, slot.actions)

    async def _begun(self, index: int, request: Mapping[str, Any]) -> dict[str, Any]:
        """What the server answers to a reset, in the slot's session or in a new one."""
        if (session := self._sessions.pop(index, None)) is not None:
            try:
                answer = await session.ask(request)
            except ServerFault as fault:
                await session.close()
                if fault.code != "environment_died":  # one that was closed meanwhile, or whose server ended
                    raise
            else:
                self._sessions[index] = session
                return answer
        assert self._servers is not None
        self._sessions[index], answer = await self._servers.session(request)
        return answer

    def _see(self, slot: _Slot, observation: Mapping[str, Any], *, over: bool = False) -> None:
        legal = self.config.legal_actions
        slot.observation = shown(observation, self.config.observation, () if legal is None else (legal,))
        if not over:
            slot.actions = self._form.actions if legal is None else self._form.listed(observation[legal])

    def step_many(self, actions: Mapping[int, str | None]) -> dict[int, Step]:
        """Apply one action in each slot given. Stepping a slot that is done raises RuntimeError."""
        slots = self._turns_of(actions)
        waiting: dict[int, Coroutine[Any, Any, Step]] = {}
        steps: dict[int, Step] = {}
        for index, slot in slots.items():
            request = self._request(slot, actions[index])
            if isinstance(request, str):
                steps[index] = self._refused(slot, request)
            else:
                waiting[index] = self._acted(index, slot, request)
        for index, done in run_all(waiting):
            if isinstance(done, Fault):
                slots[index].done = True
                self._leave(index)
                done = broke(done.code, done.details)
            steps[index] = done
        return {index: steps[index] for index in actions}

    def _request(self, slot: _Slot, action: str | None) -> dict[str, Any] | str:
        """What the server is sent; of what names no action, what is said about it."""
        if isinstance(slot.actions, tuple) and action not in slot.actions:
            return refusal(slot.actions)
        if action is None:
            return NO_ACTION
        try:
            return self._form.action(action)
        except Unreadable as error:
            return str(error)

    async def _acted(self, index: int, slot: _Slot, action: Mapping[str, Any]) -> Step:
        try:
            answer = await self._sessions[index].ask({"type": "step", "data": action})
        except Rejected as error:
            return self._refused(slot, str(error))
        earned = float(answer.get("reward") or 0.0)
        slot.reward = slot.reward + earned if self.config.reward == "sum" else earned
        over = bool(answer.get("done"))
        self._see(slot, answer["observation"], over=over)
        reason = None
        if over:
            solved = slot.reward >= self.config.success_at - _SOLVED
            reason = StopReason.success if solved else StopReason.failure
        step = self._stepped(slot, reason)
        return replace(step, turn_reward=earned) if self.config.reward == "sum" else step

    def _refused(self, slot: _Slot, feedback: str) -> Step:
        step = self._stepped(slot, None, feedback, legal=False)
        return replace(step, turn_reward=0.0) if self.config.reward == "sum" else step

    def _stepped(self, slot: _Slot, reason: StopReason | None, feedback: str = "", *, legal: bool = True) -> Step:
        if reason is None and slot.turns >= self.config.max_turns:
            reason = StopReason.turn_limit
        seen = "\n".join(filter(None, [slot.observation, ENDINGS[reason] if reason else ""]))
        return stepped(slot, reason, seen, slot.actions, feedback, legal=legal, reward=slot.reward)

    def oracle(self, slot: int) -> str | None:
        """None: a server knows no good action."""
        return None

    def _leave(self, slot: int) -> None:
        session = self._sessions.pop(slot, None)
        if session is not None:
            run(session.close())

    def close(self) -> None:
        """Leave the sessions, and the servers."""
        for slot in list(self._sessions):
            self._leave(slot)
        super().close()
        if self._servers is not None:
            servers, self._servers = self._servers, None
            returned(servers)


class _Trial:
    """A wave before its seeds are known to count."""

    def __init__(self, environment: OpenEnvEnvironment) -> None:
        self.reset_many = environment._started
        self.step_many = environment.step_many
        self.oracle = environment.oracle
        self.close = environment.close
