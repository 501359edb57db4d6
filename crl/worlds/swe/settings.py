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
        description="Tasks as SWE-Bench rows: a file (.jsonl, .json, .parquet) or a folder by "
        "datasets.save_to_disk. null: the tasks that ship with crl, which hold out whole libraries.",
    )
    level: Literal["easy", "medium", "hard"] | None = Field(
        None, description="Difficulty of the shipped tasks; null: all."
    )
    held_out_rows: str | None = Field(
        None,
        min_length=1,
        description="Held-out tasks; null: rows whose column split is not train, and a quarter of rows without "
        "one, by a hash of their topic.",
    )
    repositories: str | None = Field(
        None,
        min_length=1,
        description="Folder of the git repositories that rows name; null: that of the rows, or its `repos`.",
    )
    interpreter: str | None = Field(
        None,
        min_length=1,
        description="Python for the repositories and tests; it needs pytest and their imports. null: crl's own; "
        "in a container `python`.",
    )
    plugins: bool | None = Field(
        None, description="Load pytest's installed plugins in grading; null: if `interpreter` is set."
    )
    sandbox: Literal["bubblewrap", "container", "none"] = Field(
        "bubblewrap",
        description="Where commands run. container: each row's image, by docker or podman; none: as this user on "
        "this machine, where the actor can read solutions and do harm.",
    )
    image: str | None = Field(None, min_length=1, description="Container image for rows without one.")
    calls: Literal["tools", "text"] = Field(
        "tools",
        description="How tools are called. tools: as the model's chat template does; text: <function=…> tags or "
        "short lines.",
    )
    max_turns: int = Field(50, ge=1, le=1000, description="Turns after which an episode is lost.")
    max_output_characters: int = Field(
        8000, ge=200, le=1_000_000, description="Characters shown per call; the middle of longer output is cut."
    )
    limits: Limits = Field(Limits(), description="Limits of a command.")
    test_limits: Limits = Field(Limits(seconds=300.0), description="Limits of a task's tests, together.")
    cache: str | None = Field(
        None,
        min_length=1,
        description="Folder for checked-out trees; null: $CRL_SWE_CACHE, else ~/.cache/crl-swe.",
    )
    held_out_from: HeldOutFrom = 1_000_000

    @model_validator(mode="after")
    def _about_rows(self) -> Self:
        if self.rows is None and (self.held_out_rows is not None or self.repositories is not None):
            raise ValueError("held_out_rows and repositories go with rows; without them the tasks that ship are played")
        return self
