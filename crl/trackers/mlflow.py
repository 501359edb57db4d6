"""MLflow: one MLflow run per run directory, in the tracking store that MLflow is configured with."""

from __future__ import annotations

from typing import Any, ClassVar

from crl.trackers.base import RoundFigures, TrackedRun
from crl.trackers.figures import record_of

_MOST_CHARACTERS = 500
"""Longest value of a parameter that older MLflow servers take."""


class MLflow:
    """Figures as metrics, the method as parameters, the round tables and success by arm as artifacts.

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

    def write(self, figures: RoundFigures) -> None:
        """Log the round's metrics and renew the artifacts."""
        import time

        from mlflow.entities import Metric

        for first in range(0, len(self._parameters), 100):  # a batch may hold so many
            self._client.log_batch(self.id, params=self._parameters[first : first + 100])
        self._parameters = []
        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, figures.round) for name, value in sorted(figures.figures.items())]
        self._client.log_batch(self.id, metrics=metrics)
        self._client.log_text(self.id, figures.tables, "rounds.md")
        self._client.log_dict(self.id, {"rows": [dict(row) for row in figures.success]}, "success_by_arm.json")
        self._client.set_tag(self.id, f"round_{figures.round:04d}", figures.digest)
        self._client.set_tag(self.id, "head", figures.head)

    def close(self) -> None:
        """Mark the MLflow run as finished; a resumed run opens it again."""
        self._client.set_terminated(self.id)
