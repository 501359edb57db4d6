"""Which mutations of a library are bugs: each is tried, those are kept whose tests tell.

A mutation is kept if hidden tests fail with it, at most half of all tests do, a user could say what is wrong, and
nothing hangs; it has to fail the same tests in every run, also with another order of sets.

Each bug can be had under several names: `library.yaml` lists names of the library's with others that may take their
place, in code, tests and text. Behavior stays as it is, so what was tried holds under every name.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import cast

import yaml

from crl.worlds.swe.library import DATA, Files, Library
from crl.worlds.swe.shipped import Kind, Level, Task
from data.swe.mutations.operators import Mutation, mutations
from data.swe.mutations.reports import Report, report_of, statement
from data.swe.mutations.trials import Observation, Trial, run_trials

_REPORTS = 2
_BATCH = 40
_SECONDS = 5.0


def bugs_of(library: Library, most: int, seed: int) -> list[Task]:
    """So many bugs of a library, or all where it has fewer: seconds of processor time for ten.

    Mutations are tried in an order that the seed decides.
    """
    candidates = [mutation for path in library.sources for mutation in mutations(path, library.files[path])]
    random.Random(f"swe mutations of {library.name}, {seed}").shuffle(candidates)
    found: list[Task] = []
    for start in range(0, len(candidates), _BATCH):
        if len(found) < most:
            found += _bugs(library, candidates[start : start + _BATCH])
    return found[:most]


def renamed(task: Task, number: int) -> Task:
    """A task under other names. `number` counts the choices of names; 0, and each multiple of all, is the task."""
    names = _names(task.library.name, number)
    if not names:
        return task
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")

    def other(text: str) -> str:
        return words.sub(lambda match: names[match[0]], text)

    def files(those: Files) -> Files:
        return MappingProxyType({other(path): other(text) for path, text in those.items()})

    return replace(
        task,
        instance_id=f"{task.instance_id}-{number}",
        library=replace(task.library, files=files(task.library.files), hidden_tests=files(task.library.hidden_tests)),
        statement=other(task.statement),
        broken=files(MappingProxyType(dict(task.broken))),
    )


def _names(library: str, number: int) -> dict[str, str]:
    """The names that others take the place of, and these: choices in a row differ in most names."""
    about = yaml.safe_load((DATA / "libraries" / library / "library.yaml").read_text(encoding="utf-8"))
    names, total = {}, math.prod(len(others) + 1 for others in about["renames"].values())
    stride = int(total * 0.618) | 1
    while math.gcd(stride, total) != 1:
        stride += 2
    left = number * stride % total
    for name, others in about["renames"].items():
        left, choice = divmod(left, len(others) + 1)
        if choice:
            names[name] = others[choice - 1]
    return names


def _bugs(library: Library, candidates: Sequence[Mutation]) -> list[Task]:
    changed = [{each.path: each.applied(library.files[each.path])} for each in candidates]
    trials = run_trials(library, changed, observe=True, times=2, seconds=_SECONDS)
    telling = [index for index, trial in enumerate(trials) if _tells(library, trial)]
    again = run_trials(library, [changed[index] for index in telling], hash_seed=7, seconds=_SECONDS)
    found = []
    for index, other in zip(telling, again, strict=True):
        trial, mutation = trials[index], candidates[index]
        if trial.failed == other.failed and (task := _task(library, mutation, trial)) is not None:
            found.append(task)
    return found


def _tells(library: Library, trial: Trial) -> bool:
    hidden = any(name.partition("::")[0] in library.hidden_tests for name in trial.failed)
    return hidden and not trial.ended and 2 * len(trial.failed) <= len(library.tests) and bool(trial.observations)


def _task(library: Library, mutation: Mutation, trial: Trial) -> Task | None:
    reports = {
        name: report
        for name, seen in trial.observations.items()
        if (report := report_of(library, name, seen)) is not None
    }
    chosen = sorted(reports, key=lambda name: (len(reports[name].code), name))[:_REPORTS]
    if not chosen or _misnamed(mutation, trial.observations[chosen[0]]):
        return None
    hidden = next(iter(library.hidden_tests))
    fails = tuple(name for name in trial.failed if name.startswith(hidden))
    visible = tuple(name for name in trial.failed if not name.startswith(hidden))
    told = [reports[name] for name in chosen]
    instance_id = f"{library.name}-{mutation.path.rpartition('/')[2][:-3]}-{mutation.start}-{mutation.digest}"
    return Task(
        instance_id=instance_id,
        library=library,
        level=_level(mutation, told, len(fails), bool(visible)),
        kind=cast(Kind, mutation.kind),
        statement=statement(told, library.name, instance_id),
        broken=MappingProxyType({mutation.path: mutation.applied(library.files[mutation.path])}),
        fail_to_pass=fails,
        visible_failures=visible,
    )


def _misnamed(mutation: Mutation, seen: Observation) -> bool:
    """A method that its object does not have: nobody ships that."""
    return mutation.operator in ("method", "extreme") and seen.how == "raised" and seen.got.startswith("AttributeError")


def _level(mutation: Mutation, reports: list[Report], fails: int, visible: bool) -> Level:
    """Easy where the report names the function that is broken, hard where no name leads there and one test tells."""
    words = set(re.findall(r"\w+", " ".join(report.last for report in reports)))
    code = set(re.findall(r"\w+", " ".join(report.code for report in reports)))
    parts = mutation.function.split(".")
    if words & {parts[-1]} or (visible and fails > 2):
        return "easy"
    if parts[-1].startswith("_") and not parts[-1].startswith("__") and fails <= 2 and not code & set(parts):
        return "hard"
    return "medium"
