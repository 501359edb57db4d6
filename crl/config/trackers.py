"""Which trackers a run's rounds are written to: `runtime.trackers`, by name or as a mapping with options."""

from __future__ import annotations

import inspect
import re
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from crl.config.registry import load_object
from crl.errors import BadInput

GROUP = "crl.trackers"
"""Entry point group by which other packages add a tracker."""
BUILT_IN = {
    "tensorboard": "crl.trackers.tensorboard:TensorBoard",
    "mlflow": "crl.trackers.dashboards:MLflow",
    "wandb": "crl.trackers.dashboards:WandB",
    "trackio": "crl.trackers.dashboards:Trackio",
}

_USER_INFORMATION = re.compile(r"://[^/?#\s]*@")


class TrackerChoice(BaseModel):
    """One tracker. `mlflow` alone means `{kind: mlflow}`."""

    # Which options there are is known to the tracker's class: `check` holds them against it.
    model_config = ConfigDict(frozen=True, extra="allow", field_title_generator=lambda name, _: name)

    kind: str = Field(
        description="tensorboard, mlflow, wandb, trackio, a name from the entry point group `crl.trackers`, or "
        "module:Class. Other keys are its options."
    )

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @property
    def options(self) -> dict[str, Any]:
        """What the tracker's class is made with."""
        return dict(self.model_extra or {})

    def load(self) -> Any:
        """The tracker's class (`crl.trackers.base.Tracker`). Raises BadInput where there is none of this kind."""
        found = {each.name: each.value for each in entry_points(group=GROUP)} | BUILT_IN
        reference = found.get(self.kind, self.kind)
        try:
            if ":" not in reference:
                raise ValueError("it is neither a known name nor module:Class")
            return load_object(reference)
        except (ImportError, AttributeError, ValueError) as error:
            raise BadInput(
                f"there is no tracker {self.kind!r}: {error}",
                expected=f"one of {', '.join(sorted(found))}, or module:Class",
                where="runtime.trackers",
                next_step="docs/trackers.md lists them and shows how to add one",
            ) from None

    def check(self) -> None:
        """Raise BadInput for an unknown kind, a library that is not installed, options that the class lacks, and a URL
        with a name or password in it: options are kept with the run."""
        tracker = self.load()
        requires = getattr(tracker, "requires", None)
        if requires is not None and find_spec(requires) is None:
            raise BadInput(
                f"tracker {self.kind!r} needs the library {requires}, which is not installed",
                where="runtime.trackers",
                next_step=f"install it (docs/trackers.md: pip install {requires}), or train without trackers: "
                "crl train FILE --set 'runtime.trackers=[]'",
            )
        try:
            inspect.signature(tracker).bind(None, **self.options)
        except TypeError as error:
            options = list(inspect.signature(tracker).parameters)[1:]
            raise BadInput(
                f"tracker {self.kind!r} cannot be made with {', '.join(self.options) or 'no options'}: {error}",
                expected=f"options {', '.join(options)}" if options else "no options",
                where="runtime.trackers",
            ) from None
        for name, value in self.options.items():
            if isinstance(value, str) and _USER_INFORMATION.search(value):
                raise BadInput(
                    f"option {name} of tracker {self.kind!r} holds a user name or password, which would be kept with "
                    "the run",
                    expected="a URL without anything before an @",
                    where="runtime.trackers",
                    next_step="take it out; set it in the environment instead, as docs/trackers.md says "
                    "(MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD for MLflow)",
                )
