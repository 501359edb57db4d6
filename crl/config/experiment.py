"""The experiment: its name, its frozen method, its free runtime."""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from crl.config.base import LONGEST_SECONDS, MOST_ROUNDS, NAME_PATTERN, Model
from crl.config.engines import ServerConfig
from crl.config.method import Method, Name
from crl.config.nodes import NodesConfig
from crl.config.trackers import TrackerChoice


class WhenBusy(StrEnum):
    """What a run does while another attempt works on the same experiment."""

    wait = "wait"
    refuse = "refuse"


SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"
"""Names the scheduler of the Dask cluster that is used."""


class TaskRunnerName(StrEnum):
    """Where the parts of a stage run when there is more than one shard."""

    engines = "engines"
    """Engines side by side on this machine, under the driver."""
    dask = "dask"
    """Prefect tasks on a Dask cluster, for several machines."""


class StopAt(Model):
    """No further round begins once one of these is reached; a round that has begun is finished."""

    success: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Held-out success of the newest evaluated round (with the bank where there is one).",
    )
    tokens: int | None = Field(
        None, ge=1, le=10**15, description="Tokens that the models wrote in training, in all rounds."
    )
    hours: float | None = Field(
        None, gt=0, le=LONGEST_SECONDS / 3600, description="Hours that the stages took, in all rounds and attempts."
    )


class Runtime(Model):
    """What changes no number: paths, shards, limits, retries, retention."""

    runs: Path | None = Field(None, description="Directory that holds the runs; default $CRL_RUNS or ./runs.")
    shards: int = Field(
        1, ge=1, le=256, description="Engines side by side, each with a part of every stage that samples."
    )
    overlap_engines: int = Field(
        2,
        ge=1,
        le=2,
        description="With method.overlap: 2 runs the two tracks side by side, each with shards of its own; 1 in turn.",
    )
    task_runner: TaskRunnerName = Field(
        TaskRunnerName.engines,
        description="What runs the shards: engines on this machine, or dask on several (without Prefect: engines).",
    )
    nodes: NodesConfig | None = Field(
        None, description="Machines for updates with several deepspeed.ranks; none: all ranks on this machine."
    )
    when_busy: WhenBusy = Field(
        WhenBusy.wait,
        description="While another run works on the experiment: wait for it, or refuse at once, which "
        "`crl resume` and --no-prefect always do.",
    )
    wait_seconds: float = Field(
        6 * 3600, ge=0, le=LONGEST_SECONDS, description="Longest wait for another run before giving up (with Prefect)."
    )
    approval_wait_seconds: float = Field(
        7 * 86_400,
        ge=0,
        le=LONGEST_SECONDS,
        description="Longest wait of a flow run for a person; 0 ends it at once, to be resumed.",
    )
    retries: int = Field(2, ge=0, le=20, description="Retries of a stage after a transient failure.")
    retry_delay_seconds: float = Field(5.0, ge=0, le=3600, description="First delay; it doubles with each retry.")
    stage_time_limit_seconds: float = Field(
        3600, ge=1, le=LONGEST_SECONDS, description="A stage past it is ended with its engine."
    )
    broken_episodes_limit: float = Field(
        0.9,
        ge=0,
        le=1,
        description="A stage fails where a larger share of its games, or of one task family's, broke; 1: never.",
    )
    lease_seconds: float = Field(
        60, ge=2, le=3600, description="Seconds without a heartbeat after which an owner elsewhere counts as dead."
    )
    save_total_limit: int = Field(
        2,
        ge=1,
        le=MOST_ROUNDS,
        description="Newest checkpoints kept per role; older ones are pruned, but those of the best evaluated round.",
    )
    keep_every: int = Field(
        0, ge=0, le=MOST_ROUNDS, description="Also keep the checkpoint of every so many rounds; 0: none."
    )
    servers: dict[Name, ServerConfig] = Field(
        {}, description="Servers that sample, by role (the one with the weights): where one is, or how vLLM is started."
    )
    trackers: tuple[TrackerChoice, ...] = Field(
        (TrackerChoice(kind="tensorboard"),),
        description="What the metrics of complete rounds are written to: names, or {kind: …, options}.",
    )
    expectations: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Your own Great Expectations suites by row type; default the files of expectations/ beside the "
        "experiment file, or beside a parent folder.",
    )
    """Not part of the frozen method: they can fail a stage and change no number in it."""
    stop_at: StopAt | None = Field(
        None,
        description="When no further round begins; null: once all asked for are done. A study runs all of its rounds.",
    )
    validate_every: int = Field(
        1,
        ge=0,
        le=MOST_ROUNDS,
        description="Great Expectations validates the tables of every so many rounds after they are committed, in a "
        "process beside the run; 0: never.",
    )
    min_free_gigabytes: float = Field(
        1.0, ge=0, le=1_000_000_000, description="Least to be left free after the estimate."
    )
    oversubscribe: bool = Field(
        False,
        description="Allow more ranks than this machine has cores (without a GPU) or GPUs, and more than four "
        "threads or shards per core: it runs, and slowly.",
    )

    @property
    def engine_gpus(self) -> int:
        """GPUs that one engine uses: as many as the widest server that it starts."""
        return max(
            (server.tensor_parallel_size for server in self.servers.values() if server.address is None), default=1
        )

    @property
    def parts_elsewhere(self) -> bool:
        """Whether parts of stages run on a Dask cluster that is there already; one of our own is on this machine."""
        return self.task_runner is TaskRunnerName.dask and bool(os.environ.get(SCHEDULER_VARIABLE))

    def without_prefect(self) -> Runtime:
        """What becomes of it without Prefect: engines of this machine run every shard."""
        return self.model_copy(update={"task_runner": TaskRunnerName.engines})


class Experiment(Model):
    """One experiment: its name, its frozen method, its free runtime."""

    name: str = Field(pattern=NAME_PATTERN, description="Name; the run directory has it too.")
    method: Method = Field(description="Frozen at the first run.")
    runtime: Runtime = Field(Runtime(), description="Free to change between runs.")

    @model_validator(mode="after")
    def _servers_serve(self) -> Experiment:
        served = [owner for owner in self.method.owners() if self.method.role(owner).engine.SERVED]
        for name in self.runtime.servers:
            if name not in served:
                known = ", ".join(served) or "none: no role has the engine vllm or openai"
                raise ValueError(f"runtime.servers.{name} serves no role; expected one of {known}")
        return self
