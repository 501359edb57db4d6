"""The settings of `swe`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from crl.config.environments import EnvironmentConfig, HeldOutFrom
from crl.worlds.sandbox.limits import Limits


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
