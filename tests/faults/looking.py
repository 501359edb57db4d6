"""What must hold of a run that was broken off: looked at by every test that breaks one."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from crl.audit.verify import Severity, verify
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.manifest import parse_key
from tests.tiny_run import digests

Identity = tuple[str, int, int]
"""Digest, inode and modification time of a manifest: equal means that nobody made the stage again."""


def identities(run_path: Path) -> dict[str, Identity]:
    """The identity of every complete stage."""
    found = {}
    for key, digest in digests(run_path).items():
        stat = (run_path / "rounds" / key / "manifest.json").stat()
        found[key] = (digest, stat.st_ino, stat.st_mtime_ns)
    return found


def check_kept(run_path: Path, before: dict[str, Identity], expected: dict[str, str]) -> dict[str, Identity]:
    """Nothing is damaged, what is complete is as expected, and what was complete before is untouched.

    Returns the identities of now, to be the next `before`.
    """
    now = identities(run_path)
    assert {key: identity[0] for key, identity in now.items()}.items() <= expected.items()
    assert [problem for problem in verify(run_path) if problem.severity is Severity.damaged] == []
    again = {key for key, identity in before.items() if now.get(key) != identity}
    assert not again, f"complete stages were made again or lost: {sorted(again)}"
    return now


def check_journal(run_path: Path, since: int = 0) -> None:
    """No stage was committed twice, and none was begun after it was complete; from the `since`-th event on."""
    run, events = RunDirectory.open(run_path), Journal(run_path).read()[since:]
    for key in digests(run_path):
        place = parse_key(key)
        own = [event for event in events if (event.get("round"), event.get("stage")) == place]
        assert sum(event["event"] == "stage_committed" for event in own) <= 1, f"{key} was committed twice"
        complete = datetime.fromisoformat(run.manifest(*place).provenance["committed"])
        late = [
            event
            for event in own
            if event["event"] == "stage_started" and datetime.fromisoformat(event["time"]) > complete
        ]
        assert not late, f"{key} was begun again after it was complete"
