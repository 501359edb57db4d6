"""Trackio: a local dashboard with the calls of Weights & Biases; `trackio show` opens it."""

from __future__ import annotations

import secrets
from typing import ClassVar

from crl.trackers.base import RoundFigures, TrackedRun


class Trackio:
    """Figures by step, the method as config, success by arm as a table.

    Args:
        project: Trackio project; default the experiment's name.
        space: Hugging Face Space to write to; default none: on this machine.
    """

    requires: ClassVar[str | None] = "trackio"

    def __init__(self, run: TrackedRun, project: str | None = None, space: str | None = None) -> None:
        import trackio

        self._trackio = trackio
        # Trackio takes a name that it knows for the same run, and two runs directories may hold one experiment each.
        self.id = run.earlier or f"{run.experiment}-{secrets.token_hex(4)}"
        trackio.init(
            project=project or run.experiment,
            name=self.id,
            resume="allow",
            space_id=space,
            config={**run.method, "record": str(run.path), "method_digest": run.method_digest},
            embed=False,
        )

    def write(self, figures: RoundFigures) -> None:
        """Log the round in one step."""
        columns = list(figures.success[0]) if figures.success else []
        table = self._trackio.Table(columns=columns, data=[[row[name] for name in columns] for row in figures.success])
        head = self._trackio.Table(columns=["round", "head"], data=[[figures.round, figures.head]])
        self._trackio.log({**figures.figures, "success_by_arm": table, "head": head}, step=figures.round)

    def close(self) -> None:
        """Write what is left."""
        self._trackio.finish()
