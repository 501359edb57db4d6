"""What a person fills in to start a run: the schema of the form, and from its values to an `Experiment`.

The form offers a file of `conf/` or any other, the keys that people change first, each empty where the file decides,
and overrides for every other key. The server checks values against the schema; whatever passes and is wrong
nevertheless fails the run before any work starts, and the message names the field as the command line does. So nothing
is validated in between: Prefect passes values on as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, ValidationError, WithJsonSchema

from crl.config import Experiment, Runtime
from crl.config.keys import FIRST_KEYS, field_schema, inlined
from crl.config.load import experiment_files, load_experiment, parse_experiment, runs_root
from crl.errors import BadInput
from crl.lab.study.config import Study, load_study
from crl.paths import shipped
from crl.run.find import find_run, runs_in

CONF = shipped() / "conf"
SETTINGS, OVERRIDES = "settings", "overrides"
"""Parameters that hold dotted keys of an experiment."""
_MOST_RUNS = 200
"""Runs that a form offers."""
AS_IN_FILE = "as in the file"
"""Value of a key that is to be what the file says, whatever the deployment of a schedule sets."""


def study_files() -> list[str]:
    """The studies that come with the project, as `conf/study/NAME.yaml`."""
    return [f"conf/study/{path.name}" for path in sorted((CONF / "study").glob("*.yaml"))]


def prompt_names() -> list[str]:
    """The prompt files that an experiment may name."""
    return sorted(path.stem for path in (CONF / "prompts").glob("*.yaml"))


def run_names() -> list[str]:
    """Names of the runs of this machine, the one that changed last first."""
    return [path.name for path in runs_in(runs_root())][:_MOST_RUNS]


def run_choice() -> dict[str, Any]:
    """Schema of a run: one of those that are there, or another path."""
    return _files("A run", run_names(), other="Another path")


def experiment_from(
    value: Any, settings: dict[str, Any] | None = None, overrides: dict[str, Any] | None = None
) -> Experiment:
    """The experiment that a form, a schedule or a caller asks for.

    `value` is an `Experiment`, a path of a YAML file (where there is none, a shipped one) or the fields of an
    experiment, where `method.prompts` may be the name of a prompt file. `settings` and `overrides` have dotted keys, as
    `crl train --set` does; a setting that is None leaves the file's value, as AS_IN_FILE does for any key. Raises
    BadInput naming the field.
    """
    changes = changed(settings, overrides)
    if isinstance(value, Experiment):
        if not changes:
            return value
        value = value.model_dump(mode="json")
    if isinstance(value, str | Path):
        return load_experiment(value, changes)
    if not isinstance(value, dict):
        raise BadInput(f"experiment: found {value!r}", expected="a path of a YAML file, or the fields of an experiment")
    return parse_experiment(value, changes, base=CONF, where="the parameter `experiment`")


def changed(settings: Mapping[str, Any] | None, overrides: Mapping[str, Any] | None) -> dict[str, Any]:
    """The keys that differ from the experiment's file, and their values."""
    both = _keys_over(_given(settings or {}), overrides or {})
    return {key: value for key, value in both.items() if value != AS_IN_FILE}


def laid_over(deployment: Mapping[str, Any], schedule: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a deployment, and over them those of one of its schedules.

    What is None nobody has set: Prefect's dialog sends it for fields that were not touched. Of `settings` and
    `overrides` each key is laid over on its own. Raises BadInput where these are no mappings.
    """
    keys = {}
    for name in (SETTINGS, OVERRIDES):
        for layer in (deployment, schedule):
            if not isinstance(layer.get(name) or {}, Mapping):
                raise BadInput(f"{name}: found {layer[name]!r:.200}", expected="keys and their values")
        keys[name] = [layer.get(name) or {} for layer in (deployment, schedule)]
    (lower, upper), (beneath, above) = keys[SETTINGS], keys[OVERRIDES]
    lower, upper = _given(lower), _given(upper)
    if beneath:  # overrides have the last word: the deployment's must not undo what the schedule sets
        beneath = _keys_over(beneath, upper)
    merged = {SETTINGS: _keys_over(lower, upper), OVERRIDES: _keys_over(beneath, above)}
    found = {**_given(deployment), **_given(schedule), **merged}
    return {name: value for name, value in found.items() if value or name not in merged}


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _keys_over(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys over others: a key also replaces those below it, and is applied after those above it."""
    kept = {key: value for key, value in lower.items() if not any(f"{key}.".startswith(f"{new}.") for new in upper)}
    return {**kept, **upper}


def runtime_from(last: Runtime, changes: Mapping[str, Any]) -> Runtime:
    """The runtime that a run last set out with, and what a form changes of it. Raises BadInput naming the field."""
    try:
        return Runtime.model_validate({**last.model_dump(), **_given(changes)})
    except ValidationError as error:
        told = "; ".join(f"runtime.{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise BadInput(told, where="the parameter `runtime`", next_step="correct it, or leave it empty") from None


def study_from(value: str | Path) -> Study:
    """The study of a file: a path from the working directory, or a shipped one. Raises BadInput naming the field."""
    return load_study(value)


def run_from(value: str | Path) -> Path:
    """The run directory that is meant: a path, or an experiment's name under the runs directory. Raises BadInput."""
    try:
        return find_run(str(value))
    except BadInput as error:
        raise BadInput(
            f"run_path: {error.found}", expected=error.expected, where=error.where, next_step=error.next_step
        ) from None


def _files(title: str, names: list[str], *others: dict[str, Any], other: str = "Another file") -> dict[str, Any]:
    """Schema of a choice: one of the files that are there, another one, or something else."""
    offered = [{"type": "string", "title": title, "enum": names}] if names else []
    return {"anyOf": [*offered, {"type": "string", "title": other}, *others]}


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A field that may be left empty: the pages show a choice of "None" for a type of null."""
    members = [member for member in schema.get("anyOf", []) if member.get("type") != "null"]
    more = {key: value for key, value in schema.items() if key not in ("anyOf", "default")}
    return {**more, **members[0]} if len(members) == 1 else {**more, **({"anyOf": members} if members else {})}


def _runtime() -> dict[str, Any]:
    """Schema of the runtime's plain fields, each empty where it stays as it is."""
    fields: dict[str, Any] = {}
    for name in (each for each in Runtime.model_fields if each != "runs"):  # the run is where it is
        schema = _without_null(inlined(field_schema(f"runtime.{name}")))
        if _is_leaf(schema):
            fields[name] = {**schema, "title": name, "position": len(fields)}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _settings() -> dict[str, Any]:
    """Schema of the keys that people change first, in their order; a group that holds others starts closed."""
    fields = {}
    for position, key in enumerate(FIRST_KEYS):
        schema = {name: found for name, found in inlined(field_schema(key)).items() if name != "default"}
        description = schema.pop("description", "")
        if key == "method.prompts":
            schema = {"type": "string", "enum": prompt_names()}
        elif not _is_leaf(schema):
            description += " An open group replaces that of the file."
            members = schema.get("anyOf", [{**schema, "title": key.rpartition(".")[2]}])
            members = [member for member in members if member.get("type") != "null"]
            schema = {"anyOf": [*members, {"type": "null", "title": "not set here"}], "default": None}
        fields[key] = {**schema, "title": key, "description": description, "position": position}
    return {"type": "object", "properties": fields, "additionalProperties": False}


def _is_leaf(schema: dict[str, Any]) -> bool:
    return all(member.get("type") not in ("object", "array") for member in schema.get("anyOf", [schema]))


if TYPE_CHECKING:
    ExperimentChoice = Experiment | Path | str | dict[str, Any]
    StudyChoice = Path | str
    Settings = dict[str, Any]
    RuntimeChanges = dict[str, Any]
    RunPath = str | Path
else:
    _FIELDS = {"type": "object", "title": "Fields as JSON"}
    ExperimentChoice = Annotated[Any, WithJsonSchema(_files("An experiment", experiment_files(), _FIELDS))]
    StudyChoice = Annotated[Any, WithJsonSchema(_files("A study", study_files()))]
    Settings = Annotated[dict[str, Any], WithJsonSchema(_settings())]
    RuntimeChanges = Annotated[dict[str, Any], WithJsonSchema(_runtime())]
    RunPath = Annotated[str | Path, WithJsonSchema(run_choice())]

Rounds = Annotated[int, Field(ge=1, le=100_000)]
Overrides = dict[str, Any]
NOTHING: Overrides = {}
EVERYTHING: Any = []
"""Empty and not None, for which the form would show no editor."""
