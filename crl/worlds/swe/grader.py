"""What a repaired tree is worth: whether the named tests of its row pass, all of them and no others.

They run in a fresh sandbox, on a copy (`graded`), by a program (`grading`) whose results are authenticated with a
secret that is new each time and that nothing but the program's own memory holds. Where they leave pytest otherwise
than it began, or a named test is missing, the reference fix is graded too, once: it says what an honest tree does, and
whether anybody can win the task.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import shutil
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from crl.run.files import write_atomically
from crl.worlds.sandbox.bubblewrap import Sandbox, searched
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
class Graded:
    """What running the tests of a row on a tree came to."""

    passed: frozenset[str]
    """Names of the row that only tests that passed answer to."""
    missing: tuple[str, ...]
    """Names of the row that no collected test answers to."""
    changed: frozenset[tuple[str, str]]
    """What of pytest, unittest and the plugins was not as at first, with what it became."""
    why: str
    """What ended it before its end; empty: nothing did."""
    output: str
    """What pytest wrote, shortened."""

    def data(self) -> dict[str, Any]:
        """It as JSON holds it."""
        return {"passed": sorted(self.passed), "missing": self.missing, "changed": sorted(self.changed),
                "why": self.why, "output": self.output}  # fmt: skip

    @classmethod
    def read(cls, data: dict[str, Any]) -> Graded:
        """From :meth:`data`."""
        changed = frozenset((name, digest) for name, digest in data["changed"])
        return cls(frozenset(data["passed"]), tuple(data["missing"]), changed, data["why"], data["output"])

    def fault(self, row: Row) -> str:
        """Of the tree with the reference fix: why nobody can win the task; empty where it passes."""
        failed = [name for name in row.tests if name not in self.passed]
        if not failed:
            return ""
        if self.why:
            return f"with the reference fix, {self.why}"
        if self.missing:
            return f"{len(self.missing)} of {len(row.tests)} named tests are not collected, such as {self.missing[0]!r}"
        return f"{len(failed)} of {len(row.tests)} named tests fail with the reference fix, such as {failed[0]!r}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the tests of a row say of a tree."""

    passed: frozenset[str]
    """Names of the row that passed: those that only tests that passed answer to."""
    failed: frozenset[str]
    """All other names of the row."""
    why: str = ""
    """What ended grading before its end, or makes it worthless; empty: nothing did."""
    output: str = ""
    """What pytest wrote, shortened. The actor never sees it."""
    impossible: str = ""
    """Why nobody can win this task: its reference fix does not pass either. Looked at where a test is missing."""

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
    sources: tuple[str, ...] = ()
    """Folders of the tree that packages may be in, beside its own and `src`."""
    state: str = ""
    """What else a verdict depends on: the packages that the interpreter has."""

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
        graded = self._graded(row, left)
        passed, why, impossible = graded.passed, graded.why, ""
        if graded.changed or graded.missing:
            reference = self.reference(row)
            if not why and not set(graded.changed) <= set(reference.changed):
                passed, why = frozenset(), "the tested code changed pytest itself"
            impossible = reference.fault(row)
        failed = frozenset(row.tests) - passed
        return Verdict(passed, failed, why, graded.output, impossible if failed else "")

    def reference(self, row: Row) -> Graded:
        """What the reference fix of a row comes to. It is kept beside its trees, unless it ended early."""
        if (graded := self.kept(row)) is None:
            graded = self._graded(row, self.repositories.fixed(row))
            if not graded.why:
                write_atomically(self._place(row), json.dumps(graded.data()).encode())
        return graded

    def kept(self, row: Row) -> Graded | None:
        """What the reference fix came to when it was graded, with the same packages; None where it never was."""
        try:
            return Graded.read(json.loads(self._place(row).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def _place(self, row: Row) -> Path:
        told = [row.tests, row.test_patch, row.image, self.interpreter, self.state, self.plugins]
        key = sha256(repr([told, type(self.sandbox).__name__, _PROGRAM.read_bytes()]).encode("utf-8", "replace"))
        return self.repositories.fixed(row).parent / f"reference-{key.hexdigest()[:24]}.json"

    def _graded(self, row: Row, left: Path) -> Graded:
        tested, fixed = self._trees(row)
        target = Path(tempfile.mkdtemp(prefix="graded-", dir=self.folder))
        try:
            make_graded(row, left, tested, fixed, target)
            files = files_of(row, tested)
            if not files:
                return Graded(frozenset(), row.tests, frozenset(), "", "no file of the tests exists")
            return self._run(row, files, target)
        finally:
            remove(target)

    def _run(self, row: Row, files: list[str], target: Path) -> Graded:
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
            "root": root, "paths": searched(root, self.sources), "plugins": self.plugins,
        }  # fmt: skip
        # Not -I: that ignores PYTHONHASHSEED too, and equal trees would be graded by different orders of sets.
        command = ["/usr/bin/env", "-u", "PYTHONPATH", self.interpreter, "-s", "-B", self.sandbox.seen(program)]
        longest = _SHOWN if report else LONGEST_REPORT
        ran = self.sandbox.run(
            place, command, longest=longest, limits=self.limits, stdin=json.dumps(told).encode(), program=program,
            report=report,
        )  # fmt: skip
        said = ran.report if report else ran.output.encode()
        return _graded(row, _messages(said, secret), ran.ended, cut(ran.output, _SHOWN))


def _graded(row: Row, messages: list[dict[str, Any]], ended: str, output: str) -> Graded:
    items: dict[str, list[str]] = defaultdict(list)
    outcomes: dict[str, bool] = {}
    changed: set[tuple[str, str]] = set()
    over = False
    for message in messages:
        if "collected" in message:
            for name in message["collected"]:
                items[name].append(message["item"])
        elif "ran" in message:
            outcomes[message["ran"]] = outcomes.get(message["ran"], True) and message["passed"]
        changed |= set(message.get("changed", {}).items())
        over = over or "end" in message
    why = ""
    if ended:
        why = {"time": "the tests ran too long"}.get(ended, f"the tests used too much: {ended}")
    elif not over:
        why = "the tested code ended the tests"
    passed = frozenset(
        name for name in row.tests if not why and items[name] and all(outcomes.get(each, False) for each in items[name])
    )
    missing = () if why else tuple(name for name in row.tests if not items[name])
    return Graded(passed, missing, frozenset(changed), why, output)


def _messages(report: bytes, secret: bytes) -> list[dict[str, Any]]:
    """The messages that the secret vouches for, each once."""
    found: dict[int, dict[str, Any]] = {}
    for line in report.split(b"\n"):
        code, _, message = line.partition(b" ")
        if hmac.compare_digest(code, hmac.new(secret, message, sha256).hexdigest().encode()):
            number, value = json.loads(message)
            found[number] = value
    return [found[number] for number in sorted(found)]
