"""Artifacts in the Prefect UI. The same key in every round gives a history; nothing here is part of the record.

An artifact that cannot be published is a warning in the log: it must not fail a stage that is committed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact
from prefect.logging import get_run_logger

from crl.errors import DataCheckFailed

BREACH_KEY = "data-checks"
ROUND_KEY = "round"


def publish_breach(round_number: int, stage: str, error: DataCheckFailed) -> None:
    """Which table broke which rule, with the first offending rows."""
    lines = [f"# Data check failed: round {round_number}, stage `{stage}`", "", "The stage was **not** committed.", ""]
    lines += [f"```\n{error.found}\n```"]
    if error.expected:
        lines += ["", f"**Expected:** {error.expected}"]
    if error.where:
        lines += ["", f"**Where:** {error.where}"]
    if error.next_step:
        lines += ["", f"**What to do:** {error.next_step}"]
    _publish(
        lambda: create_markdown_artifact(key=BREACH_KEY, markdown="\n".join(lines), description="Breached data check")
    )


def publish_round(round_number: int, stages: Sequence[dict[str, Any]]) -> None:
    """What each stage of a round came to: a row a stage, as its task returned it."""
    rows = [
        {
            "stage": outcome["stage"],
            "seconds": outcome["seconds"],
            "complete before": outcome["skipped"],
            "digest": outcome["digest"][:16],
            "path": outcome["path"],
        }
        for outcome in stages
    ]
    _publish(lambda: create_table_artifact(key=ROUND_KEY, table=rows, description=f"Stages of round {round_number}"))


def _publish(create: Any) -> None:
    try:
        create()
    except Exception as error:
        get_run_logger().warning("an artifact could not be published: %s", error)
