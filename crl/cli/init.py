"""`crl init`: the file of a new experiment, short enough to be read and edited. Its prompts come with it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import parse_overrides, say, shown
from crl.errors import BadInput

if TYPE_CHECKING:
    from crl.config import EnvironmentConfig
    from crl.protocols import Actions

_FIRST = "quickstart"
"""The experiment that a new one is a copy of, unless another is named."""
_HELD_OUT = 16
"""Held-out tasks of an evaluation, where there are so many."""
_SHARES = (0.1, 0.2, 0.3, 0.5)
"""Of the rows of a data set, tried in this order until so many are held out, or one in five."""


def init(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Name of the experiment, or the path of its file.")
    ] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="EXPERIMENT", help="Begin from this one of `crl list --experiments`."),
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="The model of both roles, as `crl doctor` takes it.")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="DATA", help="A file, a saved folder or a Hub id: tasks to train on.")
    ] = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE:FUNCTION", help="A reward function of TRL's form; may be repeated."),
    ] = None,
    judge: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A rubric: a frozen copy of the model is the judge.")
    ] = None,
    environment: Annotated[
        str | None, typer.Option(metavar="KIND", help="Instead of a data set: an environment of `crl env list`.")
    ] = None,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of the environment: --set prompt=question"),
    ] = None,
) -> None:
    """Write the file of a new experiment. Without a model it is a copy to begin with.

    NAME or --from says of which experiment; else of quickstart. With --model it is for a data set with a reward
    function or a judge, or for an environment. What it names is tried first: the data is read, the function is
    imported.
    """
    if model is None and not (dataset or reward or judge or environment or set):
        _copy(name, start)
        return
    if model is None or name is None or start is not None:
        missing = "no model is given" if model is None else "no name is given"
        raise BadInput(
            "--from copies an experiment as it is: it takes no model and no data" if start else missing,
            expected="crl init NAME --model MODEL with --dataset or --environment; or crl init NAME --from EXPERIMENT",
        )
    from crl.cli.env import environment_of
    from crl.config.load import parse_experiment
    from crl.config.yaml_text import read_value
    from crl.envs import check_environment

    path = _new_file(name)
    settings: dict[str, Any] = {key: read_value(value) for key, value in parse_overrides(set or []).items()}
    settings = _named(dataset, reward or [], environment, judged=judge is not None) | settings
    config = environment_of(settings)
    if dataset is not None and not settings.keys() & {"test_size", "test_split"}:
        config, settings = _with_share(config, settings)
    check_environment(config)
    actions = _first_actions(config)
    prompts = "dataset" if dataset is not None else "actions" if isinstance(actions, tuple) else "free_text"
    source = _prompts_to_copy(path, prompts)
    rubric = None if judge is None else os.path.relpath(judge, path.parent)
    text = _text(path.stem, model, settings, config, prompts, isinstance(actions, tuple), rubric)
    base = path.parent if source is None else source.parents[1]
    read = {} if judge is None else {"method.families.0.reward.judge": str(judge.absolute())}
    parse_experiment(read_value(text), read, base=base, where=shown(path))
    _write(path, text, [] if source is None else [source])
    if dataset is not None:
        _say_rows(config)
    _say_next(path)


def _copy(name: str | None, start: str | None) -> None:
    """A copy of a shipped experiment, and of the prompts that it names, under a name of its own. Raises BadInput."""
    import yaml

    from crl.config.load import parse_experiment, read_yaml
    from crl.config.yaml_text import read_value
    from crl.paths import experiment_file, shipped, shipped_name, shipped_names

    own = name if start is not None or (name and shipped_name(Path(name)) not in shipped_names()) else None
    chosen = shipped_name(Path(start or (name if own is None and name else _FIRST)))
    if chosen not in shipped_names():
        read_yaml(experiment_file(chosen).with_suffix(".yaml"))  # refuses it, and says which are near
    source = shipped() / "conf" / f"{chosen}.yaml"
    path = _new_file(own or Path(chosen).name)
    text = source.read_text(encoding="utf-8")
    if own is not None:
        named = yaml.safe_dump({"name": path.stem}, allow_unicode=True).strip()
        text = re.sub("^name:.*$", lambda _: named, text, count=1, flags=re.MULTILINE)
    data = read_value(text)
    if "method" not in data:
        raise BadInput(
            f"there is no experiment {chosen}",
            expected="one of `crl list --experiments`",
            next_step="name one of these",
        )
    parse_experiment(data, base=source.parent, where=shown(path))
    method = data["method"]
    names = {each.get("prompts") for each in [method, *method.get("families", [])]}
    prompts = [_prompts_to_copy(path, each) for each in sorted(each for each in names if isinstance(each, str))]
    _write(path, text, [each for each in prompts if each is not None])
    say(f"it is a copy of {chosen}, which comes with the project" + (f", named {path.stem}" if own else ""))
    _say_next(path)


def _new_file(name: str) -> Path:
    """The path of the new file. Raises BadInput where there is one."""
    path = Path(name if name.endswith(".yaml") else f"{name}.yaml")
    if path.exists():
        raise BadInput(f"{shown(path)} is there already", next_step="choose another name, or edit it")
    return path


def _write(path: Path, text: str, prompts: Sequence[Path]) -> None:
    """The experiment's file, and copies of its prompts beside it. Raises what a disk refuses."""
    from crl.run.files import disk_errors, making, write_atomically

    copies = {path.parent / "prompts" / source.name: source.read_bytes() for source in prompts}
    for file, content in {**copies, path: text.encode()}.items():
        with disk_errors(file), making(file.parent):
            write_atomically(file, content)
        say(f"wrote {shown(file)}")


def _say_next(path: Path) -> None:
    say("next:")
    for step, purpose in (
        (f"crl doctor {shown(path)}", "what it needs, and whether this machine has it"),
        (f"crl train {shown(path)}", "three rounds"),
    ):
        say(f"  # {purpose}\n  {step}")


def _named(dataset: str | None, reward: list[str], environment: str | None, *, judged: bool) -> dict[str, Any]:
    """The settings of the environment that the options name. Raises BadInput for none, and for both."""
    if (dataset is None) == (environment is None):
        raise BadInput(
            "both --dataset and --environment are given" if dataset else "no training data is named",
            expected="--dataset DATA with --reward MODULE:FUNCTION or --judge FILE, or --environment KIND",
        )
    if environment is not None:
        if reward:
            raise BadInput("--reward is for --dataset: an environment has its own rewards", next_step="leave it out")
        return {"kind": environment}
    if judged and not reward:
        return {"kind": "dataset", "data": dataset}
    if not reward:
        raise BadInput(
            "--dataset needs --reward or --judge, which score the answers",
            expected="--reward MODULE:FUNCTION, a function of TRL's form: f(completions, **columns) returns rewards; "
            "or --judge FILE, a text that says what a good answer is",
        )
    return {"kind": "dataset", "data": dataset, "reward": reward[0] if len(reward) == 1 else reward}


def _with_share(config: Any, settings: dict[str, Any]) -> tuple[EnvironmentConfig, dict[str, Any]]:
    """The data set with the smallest share of held-out rows that is enough to evaluate on. Raises BadInput as it."""
    for share in _SHARES:
        config = config.model_copy(update={"test_size": share})
        with suppress(BadInput):  # it may be too small for a share
            sides = config.sides()
            if len(sides.held_out) >= min(_HELD_OUT, (len(sides.training) + len(sides.held_out)) / 5):
                break
    config.sides()
    return config, {**settings, "test_size": share}


def _first_actions(config: EnvironmentConfig) -> Actions:
    from contextlib import closing

    from crl.protocols import Start

    with closing(config.make()) as environment:
        start: Start = environment.reset_many([0])[0]
        return start.actions


def _prompts_to_copy(path: Path, name: str) -> Path | None:
    """The file of the prompts of a name, unless the experiment finds them. Raises BadInput where there is none."""
    from crl.config.load import find_prompts

    try:
        find_prompts(name, path.parent, str(path), ours=False)
        return None
    except BadInput:
        return find_prompts(name, path.parent, str(path))


def _text(
    name: str,
    model: str,
    settings: dict[str, Any],
    config: EnvironmentConfig,
    prompts: str,
    constrained: bool,
    rubric: str | None,
) -> str:
    """The file."""
    levels = config.held_out_levels
    seeds = {"start": config.held_out_from or 1_000_000, "count": min(_HELD_OUT, levels or _HELD_OUT)}
    role = {"model": model, "sampling": {"max_new_tokens": 128}, "optimizer": {"learning_rate": 1e-4}}
    if model == "tiny":
        role |= {"sampling": {"max_new_tokens": 24}, "optimizer": {"learning_rate": 1e-3}}
    else:
        role["lora"] = {"r": 16, "lora_alpha": 32}
    actor = {**role, "sampling": {"max_new_tokens": 16, "constrain": "actions"}} if constrained else role
    retrieval = {"embedder": "lexical" if model == "tiny" else "minilm"}
    recipe: dict[str, Any] = {"kind": "complementary", "retrieval": retrieval}
    recipe["distill"] = {"format": "lines", "max_operations": 1}
    if "completion" in settings:  # there is something to imitate
        recipe["warm_start"] = {"actor_episodes": 48}
    reward = "" if rubric is None else f"\n      reward: {_flow({'judge': rubric})}"
    judge = "" if rubric is None else f"\n    judge: {_flow({'model': model})}"
    hangs = """An environment that hangs or dies costs its own episode with `isolate: true` and
# `step_time_limit_seconds: 60` in its family."""
    if config.runs_programs:
        hangs = "A program that hangs or dies costs its own episode."
    return f"""\
# Every key: docs/config.md. {hangs}
name: {name}
method:
  families:
    - name: {_family(name)}
      environment: {_flow(settings)}{reward}
      evaluation_seeds: {_flow(seeds)}
  roles:
    actor: {_flow(actor)}
    extractor: {_flow(role)}{judge}
  rollout: {{group_size: 4, action_format: word}}
  recipe: {_flow(recipe)}
  prompts: {prompts}
"""


def _family(name: str) -> str:
    kept = re.sub(r"[^a-z0-9_]", "_", name.lower())[:31]
    return kept if re.match("[a-z]", kept) else "task"


def _flow(value: dict[str, Any]) -> str:
    """A mapping on one line, as a person writes it."""
    import yaml

    text: str = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=10_000, allow_unicode=True)
    return text.strip()


def _say_rows(config: Any) -> None:
    sides = config.sides()
    text = f"{len(sides.training)} rows to train on, {len(sides.held_out)} held out to evaluate on"
    say(text + (f"; {sides.repeated} equal to another row count once" if sides.repeated else ""))
