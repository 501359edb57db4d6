"""The settings of `swe`, and the kinds of end that its limits make."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from crl.config.base import Model
from crl.config.environments import EnvironmentConfig, HeldOutFrom

MEGABYTE = 1 << 20
Ended = Literal["", "time", "memory", "processes", "disk", "output"]
"""The limit that a command was stopped at; empty: it ended by itself."""


class Limits(Model):
    """Limits of one command; those of the work tree hold between commands too."""

    seconds: float = Field(60.0, ge=0.1, le=86_400, description="Longest command; it is killed after it.")
    memory_mb: int = Field(
        2048, ge=64, le=1 << 22, description="Most memory of a process, and of all processes of a command together."
    )
    processes: int = Field(128, ge=8, le=100_000, description="Most processes and threads at one time.")
    temporary_mb: int = Field(
        64, ge=1, le=1 << 20, description="Size of /tmp, and of /dev/shm: in memory, new for each command."
    )
    file_mb: int = Field(64, ge=1, le=1 << 20, description="Largest file that a command may write.")
    tree_mb: int = Field(1024, ge=1, le=1 << 22, description="Most that the work tree may hold; more ends the episode.")
    tree_files: int = Field(
        200_000, ge=100, le=100_000_000, description="Most files and folders of the work tree; more ends the episode."
    )
    output_mb: int = Field(
        16, ge=1, le=1024, description="Most output of a command, which is read but not kept; it is killed after it."
    )


class SweSettings(EnvironmentConfig):
    """What may be set; `crl.worlds.swe.environment` makes the environment of it."""

    PATHS: ClassVar[tuple[str, ...]] = ("rows", "held_out_rows", "repositories", "cache")

    kind: Literal["swe"] = "swe"
    rows: str | None = Field(
        None,
        min_length=1,
        description="Tasks in SWE-Bench's row format: a file (.jsonl, .json, .parquet) or a folder of "
        "datasets.save_to_disk; null: the tasks that ship; held-out ones are over libraries that training does not "
        "know.",
    )
    level: Literal["easy", "medium", "hard"] | None = Field(
        None, description="Level of difficulty of the tasks that ship; null: all."
    )
    held_out_rows: str | None = Field(
        None,
        min_length=1,
        description="Tasks of the held-out seeds; null: rows whose column split is not train, and a quarter "
        "of those without one, by a hash of what they are about.",
    )
    repositories: str | None = Field(
        None,
        min_length=1,
        description="Folder of the local git repositories that rows name; null: the folder of the rows, or `repos` "
        "in it.",
    )
    interpreter: str | None = Field(
        None,
        min_length=1,
        description="Python that the repositories are run and graded with; it needs pytest and what they import. "
        "null: the one that runs this; in a container `python`.",
    )
    plugins: bool | None = Field(
        None, description="Whether grading loads pytest's installed plugins; null: where an interpreter is named."
    )
    sandbox: Literal["bubblewrap", "container", "none"] = Field(
        "bubblewrap",
        description="Where commands run. container: the image of each row, by docker or podman; none: nowhere, as "
        "this user on this machine: the actor may read the solutions and do harm.",
    )
    image: str | None = Field(
        None, min_length=1, description="Container image of rows that name none, for sandbox: container."
    )
    calls: Literal["tools", "text"] = Field(
        "tools",
        description="How a tool is called. tools: as the chat template of the model does; text: "
        "<function=…> tags or short lines.",
    )
    max_turns: int = Field(50, ge=1, le=1000, description="Turns before an episode counts as failed.")
    max_output_characters: int = Field(
        8000, ge=200, le=1_000_000, description="Most characters that one call shows; the middle of more is left out."
    )
    limits: Limits = Field(Limits(), description="What a command may use.")
    test_limits: Limits = Field(
        Limits(seconds=300.0), description="What the tests of a task may use, all of them together."
    )
    cache: str | None = Field(
        None,
        min_length=1,
        description="Where trees of repositories are kept; null: $CRL_SWE_CACHE, else ~/.cache/crl-swe.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _about_rows(self) -> Self:
        if self.rows is None and (self.held_out_rows is not None or self.repositories is not None):
            raise ValueError("held_out_rows and repositories go with rows; without them the tasks that ship are played")
        return self


def in_words(limits: Limits, ended: Ended) -> str:
    """Why a command was stopped."""
    return {
        "": "",
        "time": f"it ran longer than {limits.seconds:g} seconds",
        "memory": f"its processes used more than {limits.memory_mb} MB of memory",
        "processes": f"it had more than {limits.processes} processes",
        "disk": f"the work tree holds more than {limits.tree_mb} MB or {limits.tree_files} files",
        "output": f"it wrote more than {limits.output_mb} MB of output",
    }[ended]
