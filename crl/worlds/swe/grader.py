"""What a repaired tree is worth: whether the named tests of its row pass, all of them and no others.

They run in a fresh sandbox, on a copy (`graded`), by a program (`grading`) whose results are authenticated with a
secret that is new each time and that nothing but the program's own memory holds.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.worlds.sandbox.bubblewrap import Sandbox
from crl.worlds.sandbox.limits import Limits
from crl.worlds.sandbox.supervised import LONGEST_REPORT, cut
from crl.worlds.sandbox.usage import too_deep
from crl.worlds.sandbox.workplace import remove
from crl.worlds.swe.graded import files_of, make_graded, steering_fix
from crl.worlds.swe.repository import Repositories
from crl.worlds.swe.rows import Row

_SHOWN = 4000
_PROGRAM = Path(__file__).with_name("grading.py")


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests of a row say of a tree."""

    passed: frozenset[str]
    """Names of the row that passed: those that only tests that passed answer to."""
    failed: frozenset[str]
    """All other names of the row."""
    why: str = ""
    """What ended grading before its end; empty: nothing did."""
    output: str = ""
    """What pytest wrote, shortened. The actor never sees it."""

    @property
    def solved(self) -> bool:
        """Whether all pass."""
        return not self.failed

    def in_words(self, row: Row) -> str:
        """How many passed of those that failed before, and of the others. No name: those of hidden tests tell much."""
        repaired = sum(name in self.passed for name in dict.fromkeys(row.fail_to_pass))
        kept = sum(name in self.passed for name in dict.fromkeys(row.pass_to_pass))
        said = (
            f"Hidden tests that failed before: {repaired} of {len(set(row.fail_to_pass))} pass now. "
            f"Others: {kept} of {len(set(row.pass_to_pass))} pass."
        )
        return f"{said} ({self.why})" if self.why else said


@dataclass(frozen=True, slots=True)
class Grader:
    """Grades trees of rows."""

    repositories: Repositories
    sandbox: Sandbox
    limits: Limits
    """Of all tests of a row together."""
    interpreter: str
    plugins: bool
    """Whether plugins that the interpreter has installed are loaded."""
    folder: Path
    """Where copies are made."""

    def prepare(self, row: Row) -> None:
        """Make what grading a row needs. Raises BadInput where a diff does not fit."""
        self._trees(row)

    def _trees(self, row: Row) -> tuple[Path, Path]:
        """Base commit with `test_patch`, and with the reference fix where that steers pytest."""
        tested = self.repositories.tested(row)
        return tested, self.repositories.fixed(row) if steering_fix(row) else tested

    def of(self, row: Row, left: Path) -> Verdict:
        """The verdict on a tree, which stays as it is."""
        if too_deep(left):  # whoever walks it would meet Python's limit of recursion
            return Verdict(frozenset(), frozenset(row.tests), "its folders are too deep")
        tested, fixed = self._trees(row)
        target = Path(tempfile.mkdtemp(prefix="graded-", dir=self.folder))
        try:
            make_graded(row, left, tested, fixed, target)
            files = files_of(row, tested)
            if not files:
                return Verdict(frozenset(), frozenset(row.tests), "no file of the tests exists")
            return self._run(row, files, target)
        finally:
            remove(target)

    def _run(self, row: Row, files: list[str], target: Path) -> Verdict:
        place = self.sandbox.prepare(target, row.image)
        program = self.folder / "grading.py"
        if not program.is_file():
            shutil.copyfile(_PROGRAM, program)
            program.chmod(0o644)
        secret = secrets.token_bytes(32)
        report = os.pipe() if self.sandbox.pipes else None
        root = self.sandbox.seen(target)
        told = {
            "secret": secret.hex(), "report": 1 if report is None else report[1], "names": row.tests, "files": files,
            "root": root, "paths": [root, f"{root}/src"], "plugins": self.plugins,
        }  # fmt: skip
        # Not -I: that ignores PYTHONHASHSEED too, and equal trees would be graded by different orders of sets.
        command = ["/usr/bin/env", "-u", "PYTHONPATH", self.interpreter, "-s", "-B", self.sandbox.seen(program)]
        longest = _SHOWN if report else LONGEST_REPORT
        ran = self.sandbox.run(
            place, command, longest=longest, limits=self.limits, stdin=json.dumps(told).encode(), program=program,
            report=report,
        )  # fmt: skip
        said = ran.report if report else ran.output.encode()
        return _verdict(row, said, secret, ran.ended, cut(ran.output, _SHOWN))


def _verdict(row: Row, report: bytes, secret: bytes, ended: str, output: str) -> Verdict:
    items: dict[str, list[str]] = defaultdict(list)
    outcomes: dict[str, bool] = {}
    changed, over = False, False
    for message in _messages(report, secret):
        if "collected" in message:
            for name in message["collected"]:
                items[name].append(message["item"])
        elif "ran" in message:
            outcomes[message["ran"]] = outcomes.get(message["ran"], True) and message["passed"]
        changed, over = changed or "changed" in message, over or "end" in message
    passed = frozenset(
        name for name in row.tests if items[name] and all(outcomes.get(each, False) for each in items[name])
    )
    why = ""
    if ended:
        why = {"time": "the tests ran too long"}.get(ended, f"the tests used too much: {ended}")
    elif changed:
        why = "the tested code changed pytest itself"
    elif not over:
        why = "the tested code ended the tests"
    if why:
        passed = frozenset()
    return Verdict(passed, frozenset(row.tests) - passed, why, output)


def _messages(report: bytes, secret: bytes) -> list[dict[str, Any]]:
    """The messages that the secret vouches for, each once."""
    found: dict[int, dict[str, Any]] = {}
    for line in report.split(b"\n"):
        code, _, message = line.partition(b" ")
        if hmac.compare_digest(code, hmac.new(secret, message, hashlib.sha256).hexdigest().encode()):
            number, value = json.loads(message)
            found[number] = value
    return [found[number] for number in sorted(found)]
