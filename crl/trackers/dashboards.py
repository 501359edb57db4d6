"""Trackers that are services or servers of their own: MLflow, Weights & Biases, Trackio.

Each has one run of its own per run directory and goes on with it after a restart.
"""

from __future__ import annotations

import os
import secrets
from typing import Any, ClassVar

from crl.trackers.base import RoundMetrics, TrackedRun, record_of

_MOST_CHARACTERS = 500
"""Longest value of a parameter that older MLflow servers take."""


class MLflow:
    """Metrics, the method as parameters, the round tables and success by condition as artifacts.

    Args:
        uri: tracking store; default as MLflow is configured (`MLFLOW_TRACKING_URI`).
        experiment: MLflow experiment; default the experiment's name.
    """

    requires: ClassVar[str | None] = "mlflow"

    def __init__(self, run: TrackedRun, uri: str | None = None, experiment: str | None = None) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Param

        self._client: Any = MlflowClient(tracking_uri=uri)
        self._run = run
        # Logged with the first round of a session: where that fails the id is known, and the next session makes no
        # second MLflow run. What MLflow has already it takes again.
        self._parameters = [Param(name, str(value)[:_MOST_CHARACTERS]) for name, value in run.method.items()]
        if run.earlier is not None and self._has(run.earlier):
            self.id = run.earlier
            self._client.update_run(self.id, status="RUNNING")
            return
        name = experiment or run.experiment
        known = self._client.get_experiment_by_name(name)
        where = known.experiment_id if known is not None else self._client.create_experiment(name)
        tags = {"mlflow.note.content": record_of(run.path), "record": str(run.path), "method_digest": run.method_digest}
        self.id = str(self._client.create_run(where, run_name=run.experiment, tags=tags).info.run_id)

    def _has(self, run_id: str) -> bool:
        """False where it was deleted, or the store is another one: MLflow's default lies in the working directory."""
        from mlflow.exceptions import MlflowException

        try:
            return bool(self._client.get_run(run_id).info.lifecycle_stage != "deleted")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False

    def write(self, round_metrics: RoundMetrics) -> None:
        """Log the round's metrics and renew the artifacts."""
        import time

        from mlflow.entities import Metric

        for first in range(0, len(self._parameters), 100):  # a batch may hold so many
            self._client.log_batch(self.id, params=self._parameters[first : first + 100])
        self._parameters = []
        now = int(time.time() * 1000)
        metrics = [
            Metric(name, value, now, round_metrics.round) for name, value in sorted(round_metrics.values.items())
        ]
        self._client.log_batch(self.id, metrics=metrics)
        self._client.log_text(self.id, round_metrics.tables, "rounds.md")
        self._client.log_dict(
            self.id, {"rows": [dict(row) for row in round_metrics.success]}, "success_by_condition.json"
        )
        self._client.set_tag(self.id, f"round_{round_metrics.round:04d}", round_metrics.digest)
        self._client.set_tag(self.id, "head", round_metrics.head)

    def close(self) -> None:
        """Mark the MLflow run as finished; a resumed run opens it again."""
        self._client.set_terminated(self.id)


class WandB:
    """Metrics by round, the method as config, success by condition as a table, the round tables as text.

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

    def write(self, round_metrics: RoundMetrics) -> None:
        """Log the round in one step."""
        table = self._wandb.Table(**_success(round_metrics))
        logged = {"round": round_metrics.round, **round_metrics.values, "success_by_condition": table}
        # Offline, a resumed session counts from 0 again: its steps are kept apart from those of the session before.
        self._session.log(logged, step=max(round_metrics.round, self._session.step), commit=True)
        told = {"record_digest": round_metrics.digest, "head": round_metrics.head, "rounds": round_metrics.tables}
        self._session.summary.update(told)

    def close(self) -> None:
        """Send what is left and end the session."""
        self._session.finish()


class Trackio:
    """Metrics by step, the method as config, success by condition as a table.

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

    def write(self, round_metrics: RoundMetrics) -> None:
        """Log the round in one step."""
        table = self._trackio.Table(**_success(round_metrics))
        head = self._trackio.Table(columns=["round", "head"], data=[[round_metrics.round, round_metrics.head]])
        self._trackio.log(
            {**round_metrics.values, "success_by_condition": table, "head": head}, step=round_metrics.round
        )

    def close(self) -> None:
        """Write what is left."""
        self._trackio.finish()


def _success(round_metrics: RoundMetrics) -> dict[str, list[Any]]:
    """Success by condition, as the columns and the data of a table."""
    columns = list(round_metrics.success[0]) if round_metrics.success else []
    return {"columns": columns, "data": [[row[name] for name in columns] for row in round_metrics.success]}
