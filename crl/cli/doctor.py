"""`crl doctor`: what is installed and ready, and what an experiment would need."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.findings import Finding, checked, computed_findings, described_findings, looked_at
from crl.cli.shared import RunsOption, console, load, say
from crl.errors import BadInput, CrlError
from crl.paths import quoted

if TYPE_CHECKING:
    from crl.config import Experiment, Method

PACKAGES = (
    "torch", "transformers", "trl", "deepspeed", "peft", "prefect", "great-expectations", "duckdb", "pyarrow", "pandas",
    "numpy", "sentence-transformers", "gguf", "pydantic", "typer",
)  # fmt: skip
_LONGEST_NAME = 20
_INSTALL = "install the project again: make setup, or pip install complementary-rl"
_WHOLE_WORDS: Any = {"break_long_words": False, "break_on_hyphens": False}


def doctor(
    experiments: Annotated[
        list[Path] | None, typer.Argument(metavar="EXPERIMENT", help="YAML files: also check and estimate them.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to estimate the disk for.")] = 3,
    runs: RunsOption = None,
    set: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a key: --set method.seed=2")
    ] = None,
) -> None:
    """Say what is installed and ready. With experiments, what they would need; exit code 2 if something is missing.

    Of each model: how it is sampled from and updated here, its chat template, and its memory, on each GPU where there
    are any or the experiment is made for some. No weights are downloaded; config and tokenizer of a model on the Hub
    are. Anything too big for this machine by the estimate is reported but is not an error: the experiment may be meant
    for another machine."""
    if not experiments and (set or runs is not None):
        raise BadInput("--set and --runs need an experiment", next_step="name its file: crl doctor EXPERIMENT --set")
    loaded = [load(experiment, set or [], runs) for experiment in experiments or []]
    findings = list(installation())
    _print(findings, {})
    for each in loaded:
        found = list(dict.fromkeys(experiment_findings(each, rounds)))  # two checks may find the same
        _print(found, dict(first_settings(each)))
        findings += found
    missing = list(dict.fromkeys(finding.name for finding in findings if finding.mark == "missing"))
    if missing:
        raise BadInput(f"not ready: {'; '.join(missing)}", next_step="follow the lines marked `missing` above")
    if large := dict.fromkeys(finding.name for finding in findings if not finding.fits):
        say(f"ready, but probably too big for this machine: {'; '.join(large)}")
        return
    say("ready" + ("" if experiments else "; `crl doctor quickstart` also checks an experiment"))


def _print(findings: Sequence[Finding], settings: Mapping[str, str]) -> None:
    """A line for each, longer ones below their beginning; a name that is too long for its column has its own line."""
    width = console().width
    column = min(_LONGEST_NAME, max(len(finding.name) for finding in findings))
    indent = " " * (len(f"{'missing':<7}  ") + column + 2)
    for finding in findings:
        name = f"{finding.mark:<7}  {finding.name:<{column}}  "
        texts = [finding.result, *([finding.mend] if not finding.ok and finding.mend else [])]
        if len(finding.name) > column:
            say(name.rstrip())
            name = indent
        for text in texts:
            say(textwrap.fill(text, width, initial_indent=name, subsequent_indent=indent, **_WHOLE_WORDS))
            name = indent
    column = max(map(len, settings), default=0)
    for key, value in settings.items():
        say(f"{key:<{column}}  {value}")


def installation() -> Iterator[Finding]:
    """The machine and the environment."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("python", f"{version}, {platform.machine()}", supported, "install Python 3.11 or 3.12")
    versions = {name: _version(name) for name in PACKAGES}
    yield Finding("packages", ", ".join(f"{name} {version}" for name, version in versions.items() if version))
    for name in (name for name, version in versions.items() if version is None):
        yield Finding(name, "not installed", False, _INSTALL)
    yield _faiss()
    compilers = (shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name)
    compiler = next((path for path in compilers if path), None)
    yield Finding("C compiler", compiler or "none", compiler is not None, "install one: apt install build-essential")
    yield from _machine()
    yield from _models()


def experiment_findings(experiment: Experiment, rounds: int) -> list[Finding]:
    """Whether an experiment can run here, and what it would need."""
    from crl.config.load import runs_root
    from crl.run.find import beside

    run_path = runs_root(experiment) / experiment.name
    with beside(run_path):
        return list(_experiment_findings(experiment, rounds, run_path))


def _experiment_findings(experiment: Experiment, rounds: int, run_path: Path) -> Iterator[Finding]:
    from crl.cli.needs import needs
    from crl.policies.machine import replaced
    from crl.preflight import checks, checks_here
    from crl.preflight.estimate import check_disk, estimate
    from crl.preflight.numbers import gpus_here
    from crl.preflight.placement import machine_of
    from crl.preflight.probe import Comparison
    from crl.rounds.recipe import recipe_of

    method = experiment.method
    yield Finding("experiment", f"{experiment.name}, method {method.digest()[:12]}")
    elsewhere = not machine_of(experiment).here
    if elsewhere:
        said = (
            f"made for {experiment.runtime.gpus} (runtime.gpus), and reckoned for such a machine; here: {gpus_here()}"
        )
        yield Finding("GPUs", said, False, fits=False)
    with Comparison(method) as compared:
        done = [checked(name, check) for name, check in (checks if elsewhere else checks_here)(experiment)]
        failed = [finding for finding in done if not finding.ok]
        described = list(described_findings(method, prepare=not failed))
        yield Finding("checks", f"{len(done) - len(failed)} of {len(done)} passed: settings, worlds, files")
        yield from failed
        yield from [] if failed else _starts(method)
        yield from described
        models = [method.role(owner).model for owner in method.owners()]
        if all(each.ok for each in [*done, *described]) and all(looked_at(each, prepare=True) for each in models):
            prompts = partial(recipe_of(method).check_ready, method, run_path)
            yield checked("prompts", prompts, "the first ones fit, and the tokenizers read them whole")
        needed = estimate(experiment)
        yield from computed_findings(experiment, needed, compared)
    precision = None if elsewhere else replaced(method)
    yield from [] if precision is None else [Finding("bfloat16", precision)]
    yield from _learning_rates(method)
    yield from _shards(experiment)
    yield from _tasks(method)
    if needed.memory_bytes is None:
        said = f"unknown: nothing on this machine says how large {', '.join(needed.unknown)} is"
        yield Finding("memory", said, False, required=False)
        return
    for need in needs(experiment, needed, rounds, run_path):
        yield Finding(need.name, need.message, need.fits, need.mend, fits=need.fits)
    if not elsewhere:
        yield checked("free disk", lambda: check_disk(experiment, run_path, rounds), "enough for it")


def _learning_rates(method: Method) -> Iterator[Finding]:
    """A line for each set of weights whose adapters would learn at the default rate, which is one of full weights."""
    for owner in method.owners():
        role = method.role(owner)
        if (
            owner in method.trained()
            and role.lora is not None
            and "learning_rate" not in role.optimizer.model_fields_set
        ):
            yield Finding(
                f"method.roles.{owner}.optimizer.learning_rate",
                f"{role.optimizer.learning_rate:g}, the default: an adapter (lora) hardly learns at it",
                False,
                "set it; 1e-5 to 1e-4 is usual for an adapter, more for a small model",
                required=False,
            )


def _starts(method: Method) -> Iterator[Finding]:
    """A line for each family whose tasks are those of a person's files: how many of them can be started."""
    from crl.envs.items import check_tasks

    for family in method.families:
        for world in family.worlds.values():
            name = f"starts of family {family.name}"
            try:
                yield from [Finding(name, found)] if (found := check_tasks(world)) else []
            except CrlError as error:
                yield Finding(name, error.found, False, error.next_step or "")


def _tasks(method: Method) -> Iterator[Finding]:
    """A line for each family whose tasks have reference solutions: how many of them are known to win."""
    for family in method.families:
        if not family.environment.proves:
            continue
        try:
            with contextlib.closing(family.environment.make()) as environment:
                faults = dict(environment.proofs(kept=True))
        except CrlError:
            continue  # the check of the environment says so
        wrong, untried = sum(bool(fault) for fault in faults.values()), sum(fault is None for fault in faults.values())
        said = f"{wrong} of {len(faults)} cannot be won; {untried} were never tried"
        mend = f"crl env check FILE --family {quoted(family.name)}: tries the reference solutions"
        yield Finding(f"tasks of family {family.name}", said, not wrong and not untried, mend, required=False)


def _shards(experiment: Experiment) -> Iterator[Finding]:
    """A line where the games of a round are fewer parts than there are shards to play them."""
    from crl.preflight.placement import collecting_parts

    shards, parts = experiment.runtime.shards, collecting_parts(experiment.method)
    if parts < shards:
        counted = f"{parts} part{'' if parts == 1 else 's'}"
        said = f"{shards}, but the games of a round are {counted} (waves): the others have nothing to play"
        mend = f"lower method.rollout.wave_groups ({experiment.method.rollout.wave_groups}), or runtime.shards"
        yield Finding("shards", said, False, mend, required=False)


def first_settings(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """The keys that people change first, in their order, and their values in words."""
    from crl.config.keys import FIRST_KEYS, value_at

    data = experiment.model_dump(mode="json")
    for key in FIRST_KEYS:
        with contextlib.suppress(KeyError):  # a role that the recipe does not have, for instance
            yield key, _shared(experiment.method, key) or _in_words(value_at(data, key))


def _shared(method: Method, key: str) -> str | None:
    """Whose a setting of weights or of their frozen base is, where a role shares another's; else None."""
    from crl.config import RoleConfig

    match key.split("."):
        case ["method", "roles", role, field, *_] if role in method.roles:
            owner, base = method.owner(role), method.roles[role].base
            if field in RoleConfig.OF_WEIGHTS and owner != role:
                return f"weights of {owner}"
            if field in RoleConfig.OF_BASE and base is not None:
                return f"base of {base}"
    return None


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    if isinstance(value, dict):
        return str(value.get("kind") or value.get("name") or ", ".join(value))
    return str(value)


def _faiss() -> Finding:
    from crl.bank.index import check_faiss, searcher

    return checked("faiss", check_faiss, lambda: str(searcher()))


def _machine() -> Iterator[Finding]:
    import psutil

    from crl.config.load import runs_root
    from crl.preflight.estimate import gigabytes
    from crl.run.files import free_bytes, is_writable

    cores = os.cpu_count() or 1
    yield Finding("processor", f"{cores} cores, {gigabytes(psutil.virtual_memory().total)} of memory")
    root = runs_root().absolute()
    yield Finding(
        "runs",
        f"{root}, {gigabytes(free_bytes(root))} free",
        is_writable(root),
        "make it writable, or set CRL_RUNS",
    )
    yield Finding("GPU", *_gpu(), required=False)


def _gpu() -> tuple[str, bool, str]:
    if importlib.util.find_spec("torch") is None:
        return "unknown: torch is not installed", False, ""
    import torch

    if not torch.cuda.is_available() and torch.version.cuda is not None and not _has_gpu():
        build = quoted(f"torch=={torch.__version__.partition('+')[0]}+cpu")
        said = "none: everything runs on the CPU. This torch is a CUDA build, gigabytes larger than the CPU build"
        return said, False, f"pip install --no-deps {build} --index-url https://download.pytorch.org/whl/cpu"
    if not torch.cuda.is_available():
        return "none: everything runs on the CPU", False, ""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names), True, ""


def _has_gpu() -> bool:
    """Whether the driver of a GPU is loaded: torch may lack it for another reason."""
    return any(Path(name).exists() for name in ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/kfd"))


def _models() -> Iterator[Finding]:
    from crl.paths import models_directory
    from crl.policies.embedders import EMBEDDERS, check_embedder
    from crl.policies.sources import BUILT_IN, check_model

    prepared = sorted(path.parent.name for path in models_directory().glob("*/config.json"))
    for name in BUILT_IN:
        ready = any(directory.startswith(f"{name}-v") for directory in prepared)
        found = f"{name}, {'prepared' if ready else 'will be prepared on first use'}"
        # An experiment that needs it says so among its checks.
        yield replace(checked("built-in model", partial(check_model, name), found), required=False)
    for name in EMBEDDERS:
        yield checked("embedder", partial(check_embedder, name), f"{name}, ready")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
