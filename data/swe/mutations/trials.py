"""Run a library's tests with its code changed in many ways, in one process that forks: milliseconds a trial.

What fails here fails under pytest too: the libraries' tests are plain functions. For code of ours alone; what an actor
writes is run by the sandbox.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.worlds.swe.library import Library

_CHILD = Path(__file__).with_name("trial.py")
SECONDS = 30.0
"""Longest time of one trial; one that is busy is ended sooner. Those of correct code take milliseconds."""


@dataclass(frozen=True)
class Observation:
    """Where a test fails: the index of a statement in its body, how it went wrong, and what came out as text.

    `how` is `returned` (another value than expected), `raised` (an exception that was not expected) or `silent` (an
    expected exception that did not come).
    """

    statement: int
    how: str
    got: str


@dataclass(frozen=True)
class Trial:
    """`failed`: names of the tests that failed. `ended`: why there is no result, if there is none."""

    failed: tuple[str, ...]
    observations: Mapping[str, Observation]
    ended: str | None = None


def run_trials(
    library: Library,
    changes: Sequence[Mapping[str, str]],
    *,
    observe: bool = False,
    times: int = 1,
    hash_seed: int = 0,
    seconds: float = SECONDS,
) -> list[Trial]:
    """A trial for each set of changed files: visible and hidden tests with these texts in place of the library's.

    With `times`, each is run so often, and one whose runs differ has no result. `hash_seed` decides the order of
    sets of texts. A trial that takes longer than `seconds` has no result either.
    """
    asked = {
        "files": {**library.files, **library.hidden_tests},
        "trials": [dict(change) for change in changes],
        "observe": observe,
        "times": times,
        "seconds": seconds,
    }
    done = subprocess.run(
        [sys.executable, "-B", str(_CHILD)],
        input=json.dumps(asked),
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=False,
    )
    results = [json.loads(line) for line in done.stdout.splitlines()]
    if done.returncode or len(results) != len(changes):
        raise RuntimeError(f"the trials of {library.name} ended after {len(results)} of {len(changes)}: {done.stderr}")
    return [_trial(result) for result in results]


def _trial(result: dict[str, Any]) -> Trial:
    if "ended" in result:
        return Trial((), {}, result["ended"])
    seen = {name: Observation(*found) for name, found in result["observations"].items()}
    return Trial(tuple(result["failed"]), seen)
