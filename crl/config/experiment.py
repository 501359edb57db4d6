"""The experiment: its name, its frozen method, its free runtime."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from crl.config.base import LONGEST_SECONDS, MOST_ROUNDS, NAME_PATTERN, Model
from crl.config.engines import ServerConfig
from crl.config.method import Method, Name
from crl.config.nodes import GpusConfig, NodesConfig
from crl.config.trackers import TrackerChoice


class WhenBusy(StrEnum):
    """What a run does while another attempt works on the same experiment."""

    wait = "wait"
    refuse = "refuse"


SCHEDULER_VARIABLE = "DASK_SCHEDULER_ADDRESS"
"""Names the scheduler of the Dask cluster that is used: whoever starts one says where it is."""


class TaskRunnerName(StrEnum):
    """Where the parts of a stage run when there is more than one shard."""

    engines = "engines"
    """Engines side by side on this machine, under the driver."""
    dask = "dask"
    """Prefect tasks on a Dask cluster that is there already, for several machines."""


class StopAt(Model):
    """No further round starts once one of these is reached; the current round is finished."""

    success: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Held-out success in the newest evaluation, with the bank if there is one.",
    )
    tokens: int | None = Field(
        None, ge=1, le=10**15, description="Tokens that the models wrote in training, over all rounds."
    )
    hours: float | None = Field(
        None, gt=0, le=LONGEST_SECONDS / 3600, description="Hours that stages took, over all rounds and attempts."
    )


class Runtime(Model):
    """What changes no number: paths, processes, limits, retries, what is kept."""

    runs: Path | None = Field(None, description="Folder of all runs; null: $CRL_RUNS, else ./runs.")
    shards: int = Field(1, ge=1, le=256, description="Engines side by side that share the sampling of each stage.")
    overlap_engines: int = Field(
        2,
        ge=1,
        le=2,
        description="With method.overlap: 2 runs both tracks side by side, each with its own shards; 1 runs them "
        "in turn.",
    )
    task_runner: TaskRunnerName = Field(
        TaskRunnerName.engines,
        description="Where shards run: engines on this machine, or the Dask cluster that DASK_SCHEDULER_ADDRESS names "
        "(with Prefect only).",
    )
    gpus: GpusConfig | None = Field(
        None,
        description="GPUs that the run is made for: with fewer or smaller ones it does not start, and `crl doctor` "
        "reckons for them on any machine; null: those that are there, or the CPU.",
    )
    nodes: NodesConfig | None = Field(
        None, description="Machines for updates with several deepspeed.ranks; null: this one."
    )
    when_busy: WhenBusy = Field(
        WhenBusy.wait,
        description="If another process works on the run: wait for it, or stop with an error. `crl resume` and "
        "--no-prefect never wait.",
    )
    wait_seconds: float = Field(6 * 3600, ge=0, le=LONGEST_SECONDS, description="Longest such wait (with Prefect).")
    approval_wait_seconds: float = Field(
        7 * 86_400,
        ge=0,
        le=LONGEST_SECONDS,
        description="Longest wait for a person's approval; 0: end at once, resume later.",
    )
    retries: int = Field(2, ge=0, le=20, description="Retries of a stage after a passing failure.")
    retry_delay_seconds: float = Field(5.0, ge=0, le=3600, description="First delay; it doubles with each retry.")
    stage_time_limit_seconds: float = Field(
        3600, ge=1, le=LONGEST_SECONDS, description="A stage that takes longer is stopped with its engine."
    )
    broken_episodes_limit: float = Field(
        0.9,
        ge=0,
        le=1,
        description="A stage fails if a larger share of its games, or of one family's, broke; 1: never.",
    )
    lease_seconds: float = Field(
        60,
        ge=2,
        le=3600,
        description="A process on another machine counts as dead after this time without a heartbeat.",
    )
    save_total_limit: int = Field(
        2,
        ge=1,
        le=MOST_ROUNDS,
        description="Newest checkpoints to keep per role; the best evaluated round's stay, too.",
    )
    keep_every: int = Field(0, ge=0, le=MOST_ROUNDS, description="Also keep every N-th round's checkpoint; 0: none.")
    servers: dict[Name, ServerConfig] = Field({}, description="Sampling servers by the role whose weights they have.")
    trackers: tuple[TrackerChoice, ...] = Field(
        (TrackerChoice(kind="tensorboard"),),
        description="Where metrics are written: names, or {kind: …, options}.",
    )
    expectations: dict[str, dict[str, Any]] = Field(
        default_factory=dict,
        description="Your own Great Expectations suites by row type; default: the files of expectations/ beside "
        "the experiment, or in a folder above.",
    )
    """Not part of the frozen method: they can fail a stage and change no number in it."""
    stop_at: StopAt | None = Field(
        None,
        description="When to stop early; null: run all rounds. Studies ignore it.",
    )
    validate_every: int = Field(
        1,
        ge=0,
        le=MOST_ROUNDS,
        description="Great Expectations checks every N-th round's tables in a process of its own; 0: never.",
    )
    min_free_gigabytes: float = Field(
        1.0, ge=0, le=1_000_000_000, description="Disk space to leave free beside the estimate."
    )
    oversubscribe: bool = Field(
        False,
        description="Allow more ranks than GPUs (or cores), and more than four threads or shards per core. Slow.",
    )

    @property
    def engine_gpus(self) -> int:
        """GPUs that one engine uses: as many as the widest server that it starts."""
        return max(
            (server.tensor_parallel_size for server in self.servers.values() if server.address is None), default=1
        )

    @property
    def parts_elsewhere(self) -> bool:
        """Whether parts of stages run on a Dask cluster."""
        return self.task_runner is TaskRunnerName.dask

    def without_prefect(self) -> Runtime:
        """What becomes of it without Prefect: engines of this machine run every shard."""
        return self.model_copy(update={"task_runner": TaskRunnerName.engines})


class Experiment(Model):
    """A name, the frozen method, and the runtime."""

    name: str = Field(pattern=NAME_PATTERN, description="Name of the experiment and its run directory.")
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

    @model_validator(mode="after")
    def _success_is_measured(self) -> Experiment:
        stop_at = self.runtime.stop_at
        if stop_at is not None and stop_at.success is not None and self.method.evaluation.every == 0:
            raise ValueError(
                "runtime.stop_at.success is a share of held-out games, and method.evaluation.every is 0: no round is "
                "evaluated; change one of the two"
            )
        return self

    @model_validator(mode="after")
    def _gpus_are_enough(self) -> Experiment:
        """One machine holds each server, and all ranks of an update unless there are `nodes`."""
        gpus = self.runtime.gpus
        if gpus is None:
            return self
        wanted = {
            f"runtime.servers.{owner}.tensor_parallel_size": server.tensor_parallel_size
            for owner, server in self.runtime.servers.items()
        }
        for owner in self.method.trained() if self.runtime.nodes is None else ():
            wanted[f"method.roles.{owner}.deepspeed.ranks"] = self.method.role(owner).deepspeed.ranks
        for where, number in wanted.items():
            if number > gpus.count:
                raise ValueError(
                    f"{where} is {number}, and runtime.gpus has {gpus.count}: lower it, or raise the other"
                )
        return self
