"""Limits of a command in a sandbox, and the kinds of end that they make."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from crl.config.base import Model

MEGABYTE = 1 << 20
Ended = Literal["", "time", "memory", "processes", "disk", "output"]
"""The limit that a command was stopped at; empty: it ended by itself."""


class Limits(Model):
    """Limits per command. Those of the work tree apply between commands, too."""

    seconds: float = Field(60.0, ge=0.1, le=86_400, description="Longest run time before it is killed.")
    memory_mb: int = Field(
        2048, ge=64, le=1 << 22, description="Most memory per process, and of all processes together."
    )
    processes: int = Field(128, ge=8, le=100_000, description="Most processes and threads at once.")
    temporary_mb: int = Field(
        64, ge=1, le=1 << 20, description="Size of /tmp and of /dev/shm, in memory, new for each command."
    )
    file_mb: int = Field(64, ge=1, le=1 << 20, description="Largest file it may write.")
    tree_mb: int = Field(1024, ge=1, le=1 << 22, description="Largest work tree; more ends the episode.")
    tree_files: int = Field(
        200_000, ge=100, le=100_000_000, description="Most files and folders of the work tree; more ends the episode."
    )
    output_mb: int = Field(16, ge=1, le=1024, description="Most output before it is killed.")


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
