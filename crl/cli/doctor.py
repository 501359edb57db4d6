"""`crl doctor`: what is installed and ready, and what an experiment would need."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crl.cli.shared import console
from crl.errors import BadInput, CrlError
from crl.paths import quoted

if TYPE_CHECKING:
    from crl.config import Experiment, Method

PACKAGES = (
    "torch", "transformers", "trl", "deepspeed", "peft", "prefect", "great-expectations", "duckdb", "pyarrow", "pandas",
    "numpy", "sentence-transformers", "gguf", "pydantic", "typer",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, what to do where it is missing."""

    name: str
    result: str
    ok: bool = True
    mend: str = ""
    required: bool = True
    """Whether training cannot do without it."""
    fits: bool = True
    """False where this machine is too small by an estimate, which is made for the longest sequences."""

    @property
    def mark(self) -> str:
        """The first word of its line."""
        return "ok" if self.ok else "too big" if not self.fits else "missing" if self.required else "–"


def doctor(
    experiment: Annotated[
        Path | None, typer.Argument(metavar="EXPERIMENT", help="A YAML file: also check and estimate it.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to estimate the disk for.")] = 3,
) -> None:
    """Say what is installed and ready. With an experiment, what it would need; exit code 2 if something is missing.

    Anything too big for this machine by the estimate is reported but is not an error: the experiment may be meant for
    another machine."""
    from crl.config.load import load_experiment

    loaded = None if experiment is None else load_experiment(experiment)
    findings = list(installation())
    if loaded is not None:
        findings += experiment_findings(loaded, rounds)
    width = max(len(finding.name) for finding in findings)
    out = console()
    for finding in findings:
        out.print(f"{finding.mark:<7}  {finding.name:<{width}}  {finding.result}")
        if not finding.ok and finding.mend:
            out.print(f"{'':{width + 11}}{finding.mend}")
    settings = {} if loaded is None else dict(first_settings(loaded))
    width = max(map(len, settings), default=0)
    for key, value in settings.items():
        out.print(f"{key:<{width}}  {value}", soft_wrap=True)
    missing = [finding.name for finding in findings if finding.mark == "missing"]
    if missing:
        raise BadInput(f"not ready: {', '.join(missing)}", next_step="follow the lines marked `missing` above")
    if large := [finding.name for finding in findings if not finding.fits]:
        out.print(f"ready, but by the estimate too big for this machine: {', '.join(large)}")
        return
    out.print("ready" + ("" if experiment else "; `crl doctor conf/quickstart.yaml` also checks an experiment"))


def installation() -> Iterator[Finding]:
    """The machine and the environment."""
    version = ".".join(str(part) for part in sys.version_info[:3])
    supported = (3, 11) <= sys.version_info[:2] < (3, 13)
    yield Finding("python", f"{version}, {platform.machine()}", supported, "install Python 3.11 or 3.12")
    for name in PACKAGES:
        found = _version(name)
        yield Finding(name, found or "not installed", found is not None, "make setup")
    yield _faiss()
    compilers = (shutil.which(name) for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name)
    compiler = next((path for path in compilers if path), None)
    yield Finding("C compiler", compiler or "none", compiler is not None, "install one: apt install build-essential")
    yield from _machine()
    yield from _models()


def experiment_findings(experiment: Experiment, rounds: int) -> list[Finding]:
    """Whether an experiment can run here, and what it would need."""
    from crl.cli.needs import needs
    from crl.config.load import runs_root
    from crl.policies.machine import replaced
    from crl.preflight import EMBEDDER, checks_here
    from crl.preflight.estimate import check_disk, estimate
    from crl.preflight.probe import Comparison
    from crl.preflight.shapes import readiness
    from crl.rounds.recipe import recipe_of

    run_path, method = runs_root(experiment) / experiment.name, experiment.method
    findings = [Finding("experiment", f"{experiment.name}, method {method.digest()[:12]}")]
    models = {f"method.roles.{owner}.model": method.role(owner).model for owner in method.owners()}
    if (embedder := method.recipe.embedder()) is not None:
        models[EMBEDDER] = embedder.name
    with Comparison(method) as compared:
        for name, check in checks_here(experiment):
            findings.append(_checked(name, check, readiness(models[name]) if name in models else "ready"))
        if all(finding.ok for finding in findings) and all(readiness(model) == "ready" for model in models.values()):
            prompts = partial(recipe_of(method).check_ready, method, run_path)
            findings.append(_checked("prompts and tokenizers", prompts, "the first prompts fit, and are read whole"))
            findings += _templates(method) if findings[-1].ok else []
        for name, check in compared.checks(prepare=False):
            findings.append(_checked(f"{name}, computed", check, partial(compared.said, name)))
    said = replaced(method)
    findings += [] if said is None else [Finding("bfloat16", said)]
    findings += [*_learning_rates(method), *_shards(experiment), *_tasks(method)]
    needed = estimate(experiment)
    if needed.memory_bytes is None:
        said = f"unknown: {', '.join(needed.unknown)} is not on this machine"
        return [*findings, Finding("memory", said, False, required=False)]
    found = [
        Finding(need.name, need.message, need.fits, need.mend, fits=need.fits)
        for need in needs(experiment, needed, rounds, run_path)
    ]
    enough = _checked("free disk", lambda: check_disk(experiment, run_path, rounds), "enough for it")
    return [*findings, *found, enough]


def _templates(method: Method) -> Iterator[Finding]:
    """A line for each role whose prompts are not written by its model's own chat template."""
    from crl.policies.chat import TRAINING
    from crl.rounds.ready import chat_of

    for role, use in method.recipe.roles().items():
        if use.multi_turn and chat_of(method, role).template == TRAINING:
            yield Finding(f"chat template, {role}", f"{TRAINING}: the model's own rewrites earlier turns")


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
    """Whose weights a role has, where the key is a setting of theirs and the role shares another's; else None."""
    from crl.config import RoleConfig

    match key.split("."):
        case ["method", "roles", role, field, *_] if field in RoleConfig.OF_WEIGHTS and role in method.roles:
            owner = method.owner(role)
            return None if owner == role else f"weights of {owner}"
    return None


def _in_words(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_in_words, value))
    if isinstance(value, dict):
        return str(value.get("kind") or value.get("name") or ", ".join(value))
    return str(value)


def _checked(name: str, check: Callable[[], None], found: str | Callable[[], str] = "ready") -> Finding:
    try:
        check()
        return Finding(name, found if isinstance(found, str) else found())
    except CrlError as error:
        return Finding(name, error.found, False, error.next_step or "")


def _faiss() -> Finding:
    from crl.bank.index import check_faiss, searcher

    return _checked("faiss", check_faiss, lambda: str(searcher()))


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

    if not torch.cuda.is_available():
        return "none: everything runs on the CPU", False, ""
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return ", ".join(names), True, ""


def _models() -> Iterator[Finding]:
    from crl.paths import models_directory
    from crl.policies.embedders import EMBEDDERS, check_embedder
    from crl.policies.sources import BUILT_IN, check_model

    prepared = sorted(path.parent.name for path in models_directory().glob("*/config.json"))
    for name in BUILT_IN:
        ready = any(directory.startswith(f"{name}-v") for directory in prepared)
        found = "prepared" if ready else "will be prepared on first use"
        yield _checked(f"model {name}", partial(check_model, name), found)
    for name in EMBEDDERS:
        yield _checked(f"embedder {name}", partial(check_embedder, name))


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
