"""Weights & Biases: one W&B run per run directory, online or offline as wandb is configured."""

from __future__ import annotations

import os
from typing import Any, ClassVar

from crl.trackers.base import RoundFigures, TrackedRun


class WandB:
    """Figures by round, the method as config, success by arm as a table, the round tables as text.

    Args:
        project: W&B project; default the experiment's name.
        entity: user or team; default as wandb is configured.
        mode: online, offline or disabled; default as wandb is configured (`WANDB_MODE`).
    """

    requires: ClassVar[str | None] = "wandb"

    def __init__(
        self, run: TrackedRun, project: str | None = None, entity: str | None = None, mode: Any = None
    ) -> None:
        import wandb

        online = (mode or os.environ.get("WANDB_MODE", "online")) == "online"
        # With a session open in this process, wandb has a key, and refuses to log in again.
        if online and wandb.run is None and not wandb.login(prompt=False):
            # wandb itself would stop and ask in the middle of the run.
            raise RuntimeError("no W&B key on this machine: `wandb login`, or mode: offline")
        self._wandb = wandb
        self._session = wandb.init(
            project=project or run.experiment,
            entity=entity,
            mode=mode,
            name=run.experiment,
            id=run.earlier,
            resume="allow",
            reinit="create_new",  # else a session of this process that is open, such as another tracker's, is taken
            dir=str(run.path),  # <run>/wandb
            settings=wandb.Settings(silent=True),  # the terminal belongs to the run's own progress
            notes=f"record: {run.path}; method {run.method_digest}",
            config={**run.method, "record": str(run.path), "method_digest": run.method_digest},
        )
        # The round is the axis and not W&B's own step, which never goes back: a round that was redone would be lost.
        self._session.define_metric("round")
        self._session.define_metric("*", step_metric="round")
        self.id = str(self._session.id)

    def write(self, figures: RoundFigures) -> None:
        """Log the round in one step."""
        columns = list(figures.success[0]) if figures.success else []
        table = self._wandb.Table(columns=columns, data=[[row[name] for name in columns] for row in figures.success])
        logged = {"round": figures.round, **figures.figures, "success_by_arm": table}
        # Offline, a resumed session counts from 0 again: its steps are kept apart from those of the session before.
        self._session.log(logged, step=max(figures.round, self._session.step), commit=True)
        told = {"record_digest": figures.digest, "head": figures.head, "rounds": figures.tables}
        self._session.summary.update(told)

    def close(self) -> None:
        """Send what is left and end the session."""
        self._session.finish()
