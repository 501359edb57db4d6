"""What a person fills in to start a run: the schema of the form, and from its values to an `Experiment`.

The form offers a file of `conf/`, any other file, or the fields of an experiment, filled in as the quickstart is. The
server holds values against the schema; whatever passes and is wrong nevertheless fails the run at once, and the message
names the field as the command line does. So nothing is validated in between: Prefect hands values over as they are.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

from pydantic import BaseModel, Field, WithJsonSchema, WrapValidator, create_model

from crl.config import EnvironmentConfig, Experiment, FamilyConfig, Method, PromptSet
from crl.config.load import load_experiment, parse_experiment, read_yaml
from crl.errors import BadInput
from crl.lab.study.config import Study, load_study
from crl.run.find import find_run

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
_NO_EXPERIMENTS = ("prompts", "deepspeed", "study", "warm")
"""Directories of `conf/` that hold other things."""
_PATTERN = CONF / "quickstart.yaml"
"""The experiment that the fields of the form are filled in like."""


def experiment_files() -> list[str]:
    """The experiments of `conf/`, as paths from the checkout: its own first, then those of its directories."""
    found = [path.relative_to(ROOT) for path in CONF.rglob("*.yaml")]
    kept = [path for path in found if path.parts[1] not in _NO_EXPERIMENTS]
    return [path.as_posix() for path in sorted(kept, key=lambda path: (len(path.parts), path.as_posix()))]


def study_files() -> list[str]:
    """The studies of `conf/study/`, as paths from the checkout."""
    return [path.relative_to(ROOT).as_posix() for path in sorted((CONF / "study").glob("*.yaml"))]


def prompt_names() -> list[str]:
    """The prompt files that an experiment may name."""
    return sorted(path.stem for path in (CONF / "prompts").glob("*.yaml"))


def experiment_from(value: Any, overrides: dict[str, Any] | None = None) -> Experiment:
    """The experiment that a form, a schedule or a caller asks for.

    `value` is an `Experiment`, a path of a YAML file (from the working directory or the checkout) or the fields of an
    experiment, where `method.prompts` may be the name of a prompt file and a missing `method` is the quickstart's.
    `overrides` are dotted keys as in `crl train --set`. Raises BadInput naming the field.
    """
    if isinstance(value, Experiment):
        if not overrides:
            return value
        value = value.model_dump(mode="json")
    if isinstance(value, str | Path):
        return load_experiment(_file(Path(value)), overrides)
    if not isinstance(value, dict):
        raise BadInput(f"experiment: found {value!r}", expected="a path of a YAML file, or the fields of an experiment")
    if "method" not in value and (filled := _filled_in()) is not None:
        value = {**value, "method": filled}
    return parse_experiment(value, overrides, base=CONF, where="the parameter `experiment`")


def study_from(value: str | Path) -> Study:
    """The study of a file: a path from the working directory or the checkout. Raises BadInput naming the field."""
    return load_study(_file(Path(value)))


def run_from(value: str | Path) -> Path:
    """The run directory that is meant: a path, or an experiment's name under the runs directory. Raises BadInput."""
    try:
        return find_run(str(value))
    except BadInput as error:
        raise BadInput(
            f"run_path: {error.found}", expected=error.expected, where=error.where, next_step=error.next_step
        ) from None


def _file(path: Path) -> Path:
    """A relative path means the working directory's file, else the checkout's: a worker may stand anywhere."""
    return ROOT / path if not path.is_absolute() and not path.exists() and (ROOT / path).exists() else path


def _filled_in() -> dict[str, Any] | None:
    """The quickstart's method with every field, the prompts by their name; None where the file is not there."""
    if not _PATTERN.exists():
        return None
    method = load_experiment(_PATTERN).method.model_dump(mode="json")
    return {**method, "prompts": read_yaml(_PATTERN)["method"]["prompts"]}


def _choice(title: str, options: list[str]) -> Any:
    return Annotated[str, WithJsonSchema({"type": "string", "title": title, "enum": options})]


def _study_form() -> Any:
    """A file of `conf/study/`, or any other."""
    another = Annotated[str, WithJsonSchema({"type": "string", "title": "Another file"})]
    files = study_files()
    return _choice("File of conf/study/", files) | another if files else another


def _form() -> Any:
    """The type whose schema is the form of an experiment.

    The UI knows `anyOf` and not `oneOf`, which pydantic makes of a union with a discriminator.
    """
    family = _like(FamilyConfig, environment=get_args(EnvironmentConfig)[0])
    names = prompt_names()
    prompts = _choice("Prompt file", names) | PromptSet if names else PromptSet
    method = _like(Method, families=Annotated[list[family], Field(min_length=1)], prompts=prompts)  # type: ignore[valid-type]
    filled = _filled_in()
    form = _like(Experiment, {} if filled is None else {"method": filled}, method=method)
    another = Annotated[str, WithJsonSchema({"type": "string", "title": "Another file"})]
    files = experiment_files()
    return _choice("File of conf/", files) | another | form if files else another | form


def _like(model: type[BaseModel], defaults: dict[str, Any] | None = None, /, **types: Any) -> Any:
    """The model with other types, and perhaps defaults, for some fields; their descriptions stay."""
    fields: dict[str, Any] = {}
    for name, kind in types.items():
        description = model.model_fields[name].description
        fields[name] = (kind, Field((defaults or {}).get(name, ...), description=description))
    return create_model(model.__name__, __base__=model, __doc__=model.__doc__, **fields)


if TYPE_CHECKING:
    ExperimentChoice = Experiment | Path | str | dict[str, Any]
    StudyChoice = Path | str
else:
    StudyChoice = Annotated[_study_form(), WrapValidator(lambda value, handler: value)]
    ExperimentChoice = Annotated[_form(), WrapValidator(lambda value, handler: value)]

Rounds = Annotated[int, Field(ge=1, le=100_000)]
Overrides = dict[str, Any]
NO_OVERRIDES: Overrides = {}
"""An empty dictionary and not None, for which the form would show no editor."""
RunPath = Annotated[str | Path, WithJsonSchema({"type": "string"})]
