"""Settings of an OpenEnv server's environment."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from crl.config.base import LONGEST_SECONDS
from crl.config.environments import EnvironmentConfig

_Seconds = Annotated[float, Field(gt=0, le=LONGEST_SECONDS)]
_Argument = str | Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[float, Field(ge=-1e300, le=1e300)] | bool


class OpenEnvConfig(EnvironmentConfig):
    """An environment of OpenEnv, played by its server: which is started here or at an address."""

    model_config = ConfigDict(title="OpenEnv")

    kind: Literal["openenv"] = "openenv"
    command: str | None = Field(
        None,
        pattern=r"\{port\}",
        description="Starts a server that listens on loopback at {port}: .venv-openenv/bin/python server.py {port}",
    )
    address: str | None = Field(None, pattern="^https?://", description="A server that runs: http://127.0.0.1:8000")
    reset: dict[str, _Argument] = Field({}, description="What `reset` is given beside the seed: {difficulty: easy}")
    goal: str | None = Field(
        None, min_length=1, description="What the actor is to do, in words; null: as the server describes itself."
    )
    observation: list[str] | None = Field(
        None, min_length=1, description="Fields of an observation that the actor reads; null: all but metadata."
    )
    legal_actions: str | None = Field(None, description="Field of an observation that lists the legal actions.")
    reward: Literal["sum", "last"] = Field(
        "sum", description="What an episode is worth: the sum of the rewards of its steps, or that of its last one."
    )
    success_at: float = Field(
        1.0, ge=-1e6, le=1e6, description="An episode that the server ends is solved if it is worth at least this."
    )
    max_turns: int = Field(30, ge=1, le=10_000, description="Turns before an episode counts as failed.")
    answer_seconds: _Seconds = Field(60.0, description="Longest wait for an answer; past it the episode breaks.")
    start_seconds: _Seconds = Field(120.0, description="Longest wait for a server that is started.")
    servers: int = Field(
        16, ge=1, le=1024, description="Most servers of `command` side by side, where one takes too few episodes."
    )

    @model_validator(mode="after")
    def _one_server(self) -> OpenEnvConfig:
        if (self.command is None) == (self.address is None):
            found = "neither" if self.command is None else "both"
            raise ValueError(f"openenv needs either command or address; found {found}")
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

    def make(self) -> Any:
        """A wave of sessions. Its first reset starts a server, or meets it."""
        from crl.worlds.openenv.environment import OpenEnvEnvironment

        return OpenEnvEnvironment(self)
