"""The journal: appended by several, torn by the dying, read in spite of damage."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.errors import DiskFull
from crl.run.journal import Journal, JsonLines
from crl.run.lease import Lease


def test_events_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.read() == []
    journal.record("stage_started", token=1, round_number=2, stage="collect", attempt=1)
    journal.record("stage_failed", token=1, error=DiskFull("full", where="here"))
    journal.record("stage_failed", token=1, error=ValueError("odd"))
    for silent in (KeyboardInterrupt(), AssertionError()):
        journal.record("stage_failed", token=1, error=silent)
    first, second, third, *silent_ones = journal.read()
    assert first["time"].endswith("+00:00")
    assert {key: first[key] for key in ("event", "token", "round", "stage", "attempt")} == {
        "event": "stage_started", "token": 1, "round": 2, "stage": "collect", "attempt": 1,
    }  # fmt: skip
    assert second["error"] == DiskFull("full", where="here").payload()
    assert third["error"] == {"type": "ValueError", "found": "odd"}
    assert [each["error"]["found"] for each in silent_ones] == ["it was interrupted", "AssertionError"]


def test_several_writers_lose_nothing(tmp_path: Path) -> None:
    def write(token: int) -> None:
        for i in range(20):
            Journal(tmp_path).record("x", token=token, i=i)

    threads = [threading.Thread(target=write, args=(token,)) for token in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = Journal(tmp_path).read()
    assert sorted((event["token"], event["i"]) for event in events) == [(t, i) for t in range(4) for i in range(20)]


_PAYLOADS = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=10), max_size=3), min_size=1, max_size=5)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=_PAYLOADS, data=st.data())
def test_a_torn_last_line_is_survived_wherever_it_was_torn(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, str]], data: st.DataObject
) -> None:
    lines = JsonLines(tmp_path_factory.mktemp("log") / "log.jsonl")
    for payload in payloads:
        lines.append(payload)
    assert lines.read() == payloads
    content = lines.path.read_bytes()
    last = content.rfind(b"\n", 0, -1) + 1
    kept = data.draw(st.integers(last, len(content)))
    lines.path.write_bytes(content[:kept])
    # A line that lacks its end of line alone is whole.
    expected = payloads if kept >= len(content) - 1 else payloads[:-1]
    assert lines.read() == expected
    lines.append({"event": "after"})
    assert lines.read() == [*expected, {"event": "after"}]
    assert lines.path.read_bytes().startswith(content[:kept]), "what stands is never changed"


def test_a_full_disk_leaves_the_lines_before_and_no_half_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(tmp_path / "log.jsonl")
    lines.append({"event": "one"})
    before = lines.path.read_bytes()

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(DiskFull):
            lines.append({"event": "two"})
    assert lines.path.read_bytes() == before
    lines.append({"event": "three"})
    assert [line["event"] for line in lines.read()] == ["one", "three"]


def test_the_next_attempt_goes_on_with_a_damaged_journal(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, seconds=30):
        pass
    journal = Journal(tmp_path)
    journal.path.write_bytes(journal.path.read_bytes().replace(b"{", b"[", 1))
    with Lease.acquire(tmp_path, seconds=30) as lease:
        assert lease.token == 2
    events = [(event["event"], event["token"]) for event in journal.read()]
    assert events == [("attempt_ended", 1), ("attempt_started", 2), ("attempt_ended", 2)]
