"""From a YAML file to an `Experiment`: overrides, the prompt file it names, and errors a person can act on."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from crl.config import ENGINES, ENVIRONMENTS, RECIPES, Experiment
from crl.config.json_text import read_json
from crl.config.other_names import answer, models_in
from crl.config.recorded import with_recorded
from crl.config.yaml_text import read_value
from crl.errors import BadInput
from crl.limits import DEEPEST
from crl.paths import experiment_file, possible_path, quoted, shipped, shipped_name, shipped_names, short
from crl.records import ROW_TYPE_BY_TABLE

_REGISTRIES = (ENGINES, ENVIRONMENTS, RECIPES)
_MOST_BYTES = 8 * 2**20
"""Bytes of a YAML file."""
_MOST_NAMED = 20
"""Names, or mistakes, that one message lists."""
_WHOLE = re.compile(r"method\.(families|families\.[0-9]{1,9}|(families\.[0-9]{1,9}\.)?prompts)")
"""Keys of what may name prompt files, as a whole."""
FOLDER = "expectations"
_EXPECTED = 'Great Expectations\' JSON: {"expectations": [{"type": "expect_…", "kwargs": {…}}, …]}'


_RUBRICS = (".md", ".txt")
"""How the name of a file with a rubric ends; a text of several words is the rubric itself."""


def load_experiment(path: str | Path, overrides: Mapping[str, Any] | None = None) -> Experiment:
    """Read an experiment file, or the shipped one of this name where there is no such file (`quickstart`).

    `overrides` are dotted keys (`method.seed`) with YAML values. `method.prompts` may be the name of a file in
    `prompts/` beside the experiment file, in a parent's `prompts/`, or of the prompts that come with the project;
    its content becomes part of the method. So do the `prompts` of a family, the text of a role's `chat_template`, the
    file of a judge's rubric (`families[].reward.judge`), and the games of the files that
    `method.recipe.warm_start.recorded` names. The files of `expectations/`, found likewise, become
    `runtime.expectations`. A family with `repeat: 8` is eight families; `{index}` in its texts is their number, and a
    value that is `{index}` alone is that number. Raises BadInput naming file, key, what was found and what was
    expected.
    """
    path = experiment_file(path)
    return parse_experiment(read_yaml(path), overrides, base=path.parent, where=str(path))


def parse_experiment(
    data: dict[str, Any], overrides: Mapping[str, Any] | None = None, *, base: Path, where: str
) -> Experiment:
    """As :func:`load_experiment`, from plain data; prompt names are looked up from `base`, `where` is for errors."""
    overrides, data = deepcopy(dict(overrides or {})), deepcopy(data)
    for dotted in sorted(filter(_WHOLE.fullmatch, overrides)):  # before their parts, which may be overridden as well
        _set(data, dotted, _value(dotted, overrides.pop(dotted)))
    data = _with_prompts(data, base, where)
    for dotted, value in overrides.items():
        _set(data, dotted, _value(dotted, value))
    data = _with_tasks(_with_families(data, where), base)
    data = _with_templates(_with_prompts(data, base, where), base, where)
    data = _with_rubrics(data, base)
    data = with_recorded(_with_expectations(data, base), base)
    try:
        return Experiment.model_validate(data)
    except ValidationError as error:
        raise BadInput(
            f"{where} is not a valid experiment:\n" + "\n".join(listed_errors(error, lambda item: _told(item, data))),
            next_step="correct the keys named above; every field is described in docs/config.md",
        ) from None


def _told(item: Any, data: Mapping[str, Any]) -> str:
    """An error in words; one of a task family ends with its name, since people know families by their names."""
    place, line = item["loc"], readable(item, recipe=_recipe(data))
    if place[:2] != ("method", "families") or len(place) < 3 or not isinstance(place[2], int):
        return line
    family = data["method"]["families"][place[2]]
    name = family.get("name") if isinstance(family, Mapping) else None
    return f"{line}, family {name}" if isinstance(name, str) else line


def _recipe(data: Mapping[str, Any]) -> Any:
    method = data.get("method")
    return method.get("recipe") if isinstance(method, Mapping) else None


def runs_root(experiment: Experiment | None = None) -> Path:
    """The directory that holds the runs: the experiment's `runtime.runs`, else $CRL_RUNS, else ./runs."""
    if experiment is not None and experiment.runtime.runs is not None:
        return possible_path(experiment.runtime.runs, "the directory of the runs", where="runtime.runs", home=True)
    named = os.environ.get("CRL_RUNS") or "runs"
    return possible_path(named, "the directory of the runs", where="CRL_RUNS", home=True)


def experiment_files() -> list[str]:
    """The experiments of the working folder, then those that come with the project as `conf/NAME.yaml`: first those of
    `conf/` itself."""
    here = [path.name for path in sorted(Path().glob("*.yaml")) if _is_experiment(path)]
    names = sorted(shipped_names(), key=lambda name: (name.count("/"), name))
    files = [f"conf/{name}.yaml" for name in names]
    return here + [file for file in files if _is_experiment(shipped() / file)]


def _is_experiment(path: Path) -> bool:
    try:
        return {"name", "method"} <= read_yaml(path).keys()
    except BadInput:  # one broken file must not keep the others from being offered
        return False


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping of a YAML file. Raises BadInput where there is none, naming the files that are beside it."""
    possible_path(path, "the file")
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)  # a device may have no end
        if len(content) > _MOST_BYTES:
            raise BadInput(f"{path} is larger than {_MOST_BYTES:,} bytes", expected="a YAML file that a person wrote")
        data = read_value(content.decode("utf-8"))
    except FileNotFoundError:
        here = sorted(str(found) for found in path.parent.glob("*.yaml"))[:_MOST_NAMED]
        close = difflib.get_close_matches(shipped_name(path), shipped_names(), n=1)
        hint = f"; did you mean {close[0]!r}, which comes with the project?" if close else ""
        raise BadInput(
            f"there is no file {path}{hint}",
            expected="a YAML file, or the name of an experiment that comes with the project (`crl list --experiments`)",
            next_step=f"files there: {', '.join(here) or 'none'}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"{path} cannot be read: {error}", expected="a readable YAML file in UTF-8") from None
    except yaml.YAMLError as error:
        raise BadInput(f"{path} is not YAML: {error}", expected="a YAML mapping") from None
    if not isinstance(data, dict):
        raise BadInput(f"{path} holds a {type(data).__name__}", expected="a YAML mapping")
    return data


def _with_prompts(data: dict[str, Any], base: Path, where: str) -> dict[str, Any]:
    """The data with the prompt files read in that it names, for all families and for some."""
    method = data.get("method")
    if not isinstance(method, dict):
        return data
    method = _prompts_read(method, "method.prompts", base, where)
    families = method.get("families")
    if isinstance(families, list):
        method = {
            **method,
            "families": [
                _prompts_read(family, f"method.families.{index}.prompts", base, where)
                if isinstance(family, dict)
                else family
                for index, family in enumerate(families)
            ],
        }
    return {**data, "method": method}


def _prompts_read(holder: dict[str, Any], key: str, base: Path, where: str) -> dict[str, Any]:
    name = holder.get("prompts")
    if not isinstance(name, str) or ("{index}" in name and "repeat" in holder):  # its families are not written out yet
        return holder
    return {**holder, "prompts": read_yaml(find_prompts(name, base, where, key))}


def _with_rubrics(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """The data with the texts of the files that judges of task families are named. Raises BadInput naming a file."""
    method = data.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("families"), list):
        return data

    def read(index: int, family: Any) -> Any:
        reward = family.get("reward") if isinstance(family, dict) else None
        if not isinstance(reward, dict):
            return family
        name, where = reward.get("judge"), f"method.families.{index}.reward.judge"
        if not isinstance(name, str) or "\n" in name or not (name.endswith(_RUBRICS) or len(name.split()) == 1):
            return family
        path, advice = possible_path(base / name, "the rubric"), "write what a good answer is into that file"
        try:
            if not name.endswith(_RUBRICS):
                raise ValueError(f"its name does not end with {' or '.join(_RUBRICS)}")
            if not (text := path.read_text(encoding="utf-8").strip()):
                raise ValueError("it is empty")
        except (OSError, ValueError) as error:
            raise BadInput(
                f"the rubric {path} cannot be read: {getattr(error, 'strerror', None) or error}",
                expected=f"a text file in UTF-8, {' or '.join(_RUBRICS)}",
                where=where,
                next_step=f"{advice}, or name another one",
            ) from None
        return {**family, "reward": {**reward, "judge": text}}

    families = [read(index, family) for index, family in enumerate(method["families"])]
    return {**data, "method": {**method, "families": families}}


def _with_templates(data: dict[str, Any], base: Path, where: str) -> dict[str, Any]:
    """The data with the text of each file that a role's `chat_template` names."""
    method = data.get("method")
    if not isinstance(method, dict) or not isinstance(roles := method.get("roles"), dict):
        return data
    read = {
        name: {**role, "chat_template": _template_read(role["chat_template"], name, base, where)}
        for name, role in roles.items()
        if isinstance(role, dict) and isinstance(role.get("chat_template"), str)
    }
    return {**data, "method": {**method, "roles": {**roles, **read}}} if read else data


def _template_read(template: str, role: str, base: Path, where: str) -> str:
    """The text of the file; what is a template already (a frozen experiment's) is its own text."""
    if "{{" in template or "{%" in template:
        return template
    key = f"method.roles.{role}.chat_template"
    file = possible_path(base / template, "the chat template", where=f"{where}, {key}")
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(
            f"{key}: {template!r} cannot be read: {error}",
            expected="a file with a jinja chat template",
            where=where,
            next_step=f"write {file}, or name a file that is there",
        ) from None
    if "{{" in text or "{%" in text:
        return text
    raise BadInput(
        f"{key}: {file} holds no chat template",
        expected="jinja, with {{ … }} or {% … %}",
        where=where,
        next_step="name the file of a chat template",
    )


def _with_expectations(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """The data with the suites of data checks that are beside the experiment, unless it brings its own."""
    runtime = data.get("runtime") or {}
    if not isinstance(runtime, dict) or "expectations" in runtime:
        return data
    found = find_expectations(base)
    return {**data, "runtime": {**runtime, "expectations": found}} if found else data


def _with_families(data: dict[str, Any], where: str) -> dict[str, Any]:
    """The data with every family that has a `repeat` written out: as many families, `{index}` in texts being 0, 1, …"""
    method = data.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("families"), list):
        return data
    families: list[Any] = []
    for family in method["families"]:
        if not isinstance(family, dict) or "repeat" not in family:
            families.append(family)
            continue
        count, rest = family["repeat"], {key: value for key, value in family.items() if key != "repeat"}
        if type(count) is not int or not 1 <= count <= 1000:  # `true` is no number of families
            raise BadInput(
                f"method.families: repeat is {count!r}", expected="a whole number from 1 to 1000", where=where
            )
        families += [_indexed(rest, index) for index in range(count)]
    return {**data, "method": {**method, "families": families}}


def _with_tasks(data: dict[str, Any], base: Path) -> dict[str, Any]:
    """The data with the lists of tasks that families name read in, looked for from `base`."""
    method = data.get("method")
    if not isinstance(method, dict) or not isinstance(method.get("families"), list):
        return data
    families = [
        {**family, "train_tasks": read_yaml(base / family["train_tasks"]).get("train_tasks")}
        if isinstance(family, dict) and isinstance(family.get("train_tasks"), str)
        else family
        for family in method["families"]
    ]
    return {**data, "method": {**method, "families": families}}


def _indexed(value: Any, index: int) -> Any:
    if isinstance(value, dict):
        return {key: _indexed(item, index) for key, item in value.items()}
    if isinstance(value, list):
        return [_indexed(item, index) for item in value]
    if value == "{index}":  # a field of a number takes no text
        return index
    return value.replace("{index}", str(index)) if isinstance(value, str) else value


def _value(dotted: str, value: Any) -> Any:
    """An override's value: YAML where it is written as text."""
    if not isinstance(value, str):
        return value
    try:
        return read_value(value)
    except yaml.YAMLError as error:
        raise BadInput(
            f"--set {short(dotted)}: {short(value)} is not YAML: {getattr(error, 'problem', None) or error}",
            expected="a YAML value; quote text with braces",
        ) from None


def find_prompts(name: str, base: Path, where: str, key: str = "method.prompts", *, ours: bool = True) -> Path:
    """The prompt file of a name: in `prompts/` of the folder given or of a parent, else the one that comes with the
    project, unless `ours` is false. Raises BadInput."""
    folders = [base, *base.resolve().parents[:2], *([shipped() / "conf"] if ours else [])]
    places = [folder / "prompts" / f"{name}.yaml" for folder in folders]
    for place in places:
        if possible_path(place, "the prompt file", where=f"{where}, {key}").is_file():
            return place
    names = sorted({found.stem for place in places for found in place.parent.glob("*.yaml")})[:_MOST_NAMED]
    raise BadInput(
        f"{key}: there is no prompt file {name!r}",
        expected=f"one of {', '.join(names) or '(no prompt files found)'}",
        where=where,
        next_step=f"write {places[0]}, or name one that exists",
    )


def _set(data: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, last = parts = dotted.split(".")
    if not all(parts) or len(parts) > DEEPEST:
        raise BadInput(
            f"--set {short(dotted)} is no key", expected="names with single dots between them, such as method.seed"
        )
    place: Any = data
    for depth, key in enumerate(parents):
        if isinstance(place, list):
            place = place[_list_index(key, place, dotted)]
        else:
            if parents[:depth] == ["method", "roles"] and key not in place:
                _check_new_role(key, place, dotted)
            if not isinstance(place.get(key), dict | list):
                place[key] = {}
            place = place[key]
    if isinstance(place, list):
        place[_list_index(last, place, dotted)] = value
    else:
        place[last] = value


def _list_index(key: str, listed: list[Any], dotted: str) -> int:
    if is_index(key) and int(key) < len(listed):
        return int(key)
    names = [str(each.get("name")) if isinstance(each, Mapping) else "" for each in listed]
    close = difflib.get_close_matches(key, names, n=1)
    raise BadInput(
        f"--set {short(dotted)}: {short(key)} is no index",
        expected=f"a number from 0 to {len(listed) - 1}" if listed else "a list that is not empty",
        next_step=f"{close[0]} is number {names.index(close[0])}" if close else None,
    )


def _check_new_role(name: str, roles: Mapping[str, Any], dotted: str) -> None:
    """Raise BadInput for a role that is not there, where it looks like one that is: it would be of no use."""
    if close := difflib.get_close_matches(name, roles, n=1, cutoff=0.75):
        raise BadInput(
            f"--set {short(dotted)}: there is no role {short(name)}; did you mean {close[0]!r}?",
            expected=f"one of {', '.join(roles)}",
            next_step="correct the key; a further role is written in the experiment's file",
        )


def is_index(key: str) -> bool:
    """Whether a part of a dotted key is written as an index: digits 0 to 9, not too many of them."""
    return re.fullmatch("[0-9]{1,9}", key) is not None


def listed_errors(error: ValidationError, words_of: Callable[[Any], str] | None = None) -> list[str]:
    """The first errors of pydantic, each in words, and how many more there are."""
    items = error.errors()
    lines = [(words_of or readable)(item) for item in items[:_MOST_NAMED]]
    return lines + ([f"  and {len(items) - _MOST_NAMED} more"] if len(items) > _MOST_NAMED else [])


def readable(item: Any, model: type[BaseModel] = Experiment, recipe: Any = None) -> str:
    """One error of pydantic in words: the key, what is wrong with it, and for an unknown key what to write instead.

    `recipe` is the recipe of the experiment as it was read.
    """
    place = ".".join(str(part) for part in item["loc"]) or "(top level)"
    if item["type"] == "extra_forbidden":
        known = _fields_at(item["loc"][:-1], model)
        name = str(item["loc"][-1])
        close = difflib.get_close_matches(name, known, n=1)
        hints = [f"did you mean {close[0]!r}?"] if close else []
        if other := answer(name, recipe) if model is Experiment else None:
            hints.append(other)
        return f"  {place}: unknown key; {'; '.join(hints) or 'known keys: ' + ', '.join(known)}"
    found = item.get("input")
    shown = "" if isinstance(found, dict | BaseModel) or item["type"] == "missing" else f" (found {found!r:.80})"
    return f"  {place}: {item['msg'].removeprefix('Value error, ')}{shown}"


def _fields_at(location: tuple[Any, ...], root: type[BaseModel]) -> list[str]:
    """Field names of the model at a location, walking annotations; tags of a discriminated union are part of it."""
    candidates: list[Any] = [root]
    for part in location:
        following: list[Any] = []
        for model in candidates:
            if isinstance(part, int):
                following.append(model)
            elif part in getattr(model, "model_fields", {}):
                following.extend(held for _, held in models_in(model.model_fields[part].annotation, part))
            else:  # a name in a mapping, or the kind, which comes before the fields of its class
                following.extend([each.load(part) for each in _REGISTRIES if issubclass(model, each.base)] or [model])
        candidates = following
    return sorted({name for model in candidates for name in getattr(model, "model_fields", {})})


def find_expectations(base: Path) -> dict[str, dict[str, Any]]:
    """A user's suites by table from the nearest folder; none where there is none. Raises BadInput naming a file.

    `expectations/episodes.json` beside an experiment file, or beside one of the two folders above it, as prompts are
    found, holds for every experiment there. What needs Great Expectations to be checked (types, columns, SQL) is
    checked before work starts (`crl/checks/own.py`).

    A suite is a mapping with a list `expectations`, each of which has a `type` and `kwargs`.
    """
    folders = [folder / FOLDER for folder in (base, *base.resolve().parents[:2])]
    folder = next((each for each in folders if each.is_dir()), None)
    files = [] if folder is None else sorted(folder.glob("*.json"))
    return {path.stem: _read(path) for path in files}


def _read(path: Path) -> dict[str, Any]:
    if path.stem not in ROW_TYPE_BY_TABLE:
        close = difflib.get_close_matches(path.stem, ROW_TYPE_BY_TABLE, n=1)
        raise BadInput(
            f"{path.name} names no row type" + (f"; did you mean {close[0]}.json?" if close else ""),
            expected=f"one of {', '.join(ROW_TYPE_BY_TABLE)}",
            where=str(path),
            next_step="rename the file; `crl checks list` names the row types",
        )
    try:
        data = read_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{path.name} is not readable JSON: {error}", expected=_EXPECTED, where=str(path)) from None
    listed = data.get("expectations") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not all(_is_expectation(each) for each in listed):
        raise BadInput(
            f"{path.name} is not a suite of expectations",
            expected=_EXPECTED,
            where=str(path),
            next_step=f"`crl checks show {quoted(path.stem)} --format json` prints one to start from",
        )
    return {str(name): value for name, value in data.items()}


def _is_expectation(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("type"), str) and isinstance(value.get("kwargs"), dict)
