"""Which mutations are bugs: each tried, those kept whose tests tell, as data that ships.

    python -m data.swe.mutations.bugs [library …]

writes `data/swe/variants/<library>.jsonl`, one line per bug (:class:`Known`). A mutation is kept if judging tests fail
with it, at most half of all tests do, a user could say what is wrong, and nothing hangs; it has to fail the same tests
in every run, also with another order of sets. Of a library that has more, `MOST` are drawn. Without names, the lists of
all libraries to train on are written.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from crl.worlds.swe.library import DATA, Library, libraries
from data.swe.mutations.operators import Mutation, mutations
from data.swe.mutations.reports import Report, report_of
from data.swe.mutations.trials import Observation, Trial, run_trials

MOST = 160
"""Bugs of one library at most."""
_REPORTS = 2
_BATCH = 40
_SECONDS = 5.0


@dataclass(frozen=True)
class Known:
    """A mutation that is a bug.

    `digest`: the first 12 hexadecimal digits of the changed file's SHA-256. `fails`: names of the judging tests that
    fail, without their file; `visible`: of those in the tree, with it. `seen`: what the statement is made of.
    """

    path: str
    start: int
    end: int
    text: str
    operator: str
    kind: str
    level: str
    digest: str
    fails: tuple[str, ...]
    visible: tuple[str, ...]
    seen: tuple[tuple[str, int, str, str], ...]

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]


def index_file(library: Library) -> Path:
    return DATA / "variants" / f"{library.name}.jsonl"


def digest_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def known(library: Library) -> list[Known]:
    """The bugs of a library: runs its mutations, minutes of processor time."""
    candidates = [mutation for path in library.sources for mutation in mutations(path, library.files[path])]
    random.Random(f"swe mutations of {library.name}").shuffle(candidates)
    found: list[Known] = []
    for start in range(0, len(candidates), _BATCH):
        if len(found) < MOST:
            found += _bugs(library, candidates[start : start + _BATCH])
    return sorted(found[:MOST], key=lambda each: (each.path, each.start, each.end, each.text))


def _bugs(library: Library, candidates: Sequence[Mutation]) -> list[Known]:
    changed = [{each.path: each.applied(library.files[each.path])} for each in candidates]
    trials = run_trials(library, changed, observe=True, times=2, seconds=_SECONDS)
    telling = [index for index, trial in enumerate(trials) if _tells(library, trial)]
    again = run_trials(library, [changed[index] for index in telling], hash_seed=7, seconds=_SECONDS)
    found = []
    for index, other in zip(telling, again, strict=True):
        trial, mutation = trials[index], candidates[index]
        if trial.failed == other.failed and (bug := _known(library, mutation, trial)):
            found.append(bug)
    return found


def _tells(library: Library, trial: Trial) -> bool:
    judging = any(name.partition("::")[0] in library.judging for name in trial.failed)
    return judging and not trial.ended and 2 * len(trial.failed) <= len(library.tests) and bool(trial.observations)


def _known(library: Library, mutation: Mutation, trial: Trial) -> Known | None:
    reports = {
        name: report
        for name, seen in trial.observations.items()
        if (report := report_of(library, name, seen)) is not None
    }
    chosen = sorted(reports, key=lambda name: (len(reports[name].code), name))[:_REPORTS]
    if not chosen or _misnamed(mutation, trial.observations[chosen[0]]):
        return None
    judging = next(iter(library.judging))
    fails = tuple(name.partition("::")[2] for name in trial.failed if name.startswith(judging))
    seen = tuple((name, *_plain(trial.observations[name])) for name in chosen)
    visible = tuple(name for name in trial.failed if not name.startswith(judging))
    level = _level(mutation, [reports[name] for name in chosen], len(fails), bool(visible))
    text = mutation.applied(library.files[mutation.path])
    return Known(
        mutation.path, mutation.start, mutation.end, mutation.text, mutation.operator, mutation.kind, level,
        digest_of(text), fails, visible, seen,
    )  # fmt: skip


def _plain(seen: Observation) -> tuple[int, str, str]:
    return seen.statement, seen.how, seen.got


def _misnamed(mutation: Mutation, seen: Observation) -> bool:
    """A method that its object does not have: nobody ships that."""
    return mutation.operator in ("method", "extreme") and seen.how == "raised" and seen.got.startswith("AttributeError")


def _level(mutation: Mutation, reports: list[Report], fails: int, visible: bool) -> str:
    """Easy where the report names the function that is broken, hard where no name leads there and one test tells."""
    words = set(re.findall(r"\w+", " ".join(report.last for report in reports)))
    code = set(re.findall(r"\w+", " ".join(report.code for report in reports)))
    parts = mutation.function.split(".")
    if words & {parts[-1]} or (visible and fails > 2):
        return "easy"
    if parts[-1].startswith("_") and not parts[-1].startswith("__") and fails <= 2 and not code & set(parts):
        return "hard"
    return "medium"


def main(names: Sequence[str]) -> None:
    trained = [name for name, library in libraries().items() if library.split == "train"]
    for name in names or trained:
        library = libraries()[name]
        bugs = known(library)
        index_file(library).parent.mkdir(parents=True, exist_ok=True)
        lines = [json.dumps(asdict(bug), ensure_ascii=False) + "\n" for bug in bugs]
        index_file(library).write_text("".join(lines), encoding="utf-8")
        print(f"{name}: {len(bugs)} bugs", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
