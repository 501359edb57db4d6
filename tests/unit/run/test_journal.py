"""The journal: appended by several, torn by the dying, and honest about damage."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.errors import DiskFull
from crl.run.journal import Journal
from crl.run.lease import Lease
from crl.run.linelog import Head, LineLog


def test_events_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.read() == []
    journal.record("stage_started", token=1, round_number=2, stage="collect", attempt=1)
    journal.record("stage_failed", token=1, error=DiskFull("full", where="here"))
    journal.record("stage_failed", token=1, error=ValueError("odd"))
    first, second, third = journal.read()
    assert first["time"].endswith("+00:00")
    assert {key: first[key] for key in ("event", "token", "round", "stage", "attempt")} == {
        "event": "stage_started", "token": 1, "round": 2, "stage": "collect", "attempt": 1,
    }  # fmt: skip
    assert second["error"] == DiskFull("full", where="here").payload()
    assert third["error"] == {"type": "ValueError", "found": "odd"}
    assert journal.fault() is None


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
    assert Journal(tmp_path).fault() is None


def test_a_torn_last_line_is_survived_and_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    journal.record("one", token=1)
    with journal.path.open("ab") as file:
        file.write(b'{"event": "tor')
    assert [event["event"] for event in journal.read()] == ["one"]
    fault = journal.fault()
    assert fault is not None
    assert "torn last line" in fault.found
    journal.record("two", token=1)
    assert [event["event"] for event in journal.read()] == ["one", "torn_line", "two"]
    assert journal.read()[1]["text"] == '{"event": "tor'
    assert journal.fault() is None


_PAYLOADS = st.lists(
    st.dictionaries(st.text(max_size=5).filter(lambda key: key != "check"), st.text(max_size=10), max_size=3),
    min_size=1,
    max_size=5,
)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(payloads=_PAYLOADS, data=st.data())
def test_any_changed_byte_is_found_and_mended(
    tmp_path_factory: pytest.TempPathFactory, payloads: list[dict[str, str]], data: st.DataObject
) -> None:
    log = LineLog(tmp_path_factory.mktemp("log") / "log.jsonl")
    for payload in payloads:
        log.append(payload)
    assert log.read() == payloads
    head = log.head()
    content = bytearray(log.path.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "cut", "delete"]))
    place = data.draw(st.integers(0, len(content) - 1))
    if kind == "flip":
        content[place] ^= data.draw(st.integers(1, 255))
        log.path.write_bytes(bytes(content))
    elif kind == "cut":
        log.path.write_bytes(bytes(content[:place]))
    else:
        log.path.unlink()
    assert log.fault(head) is not None
    aside = log.path.parent / "aside" / "log.jsonl"
    assert log.repair(head, aside) is not None
    assert log.fault() is None
    assert log.read()[-1]["event"] == "repaired"
    log.append({"event": "after"})
    assert log.fault() is None
    if kind == "flip":
        assert aside.read_bytes() == bytes(content)


def test_a_longer_log_matches_an_earlier_head(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert journal.fault(Head(0, "0" * 64)) is None
    journal.record("one", token=1)
    head = journal.head()
    journal.record("two", token=1)
    assert journal.fault(head) is None


def test_the_next_attempt_mends_the_journal(tmp_path: Path) -> None:
    with Lease.acquire(tmp_path, seconds=30):
        pass
    journal = Journal(tmp_path)
    damaged = journal.path.read_bytes().replace(b"attempt_started", b"attempt_stXrted")
    journal.path.write_bytes(damaged)
    with Lease.acquire(tmp_path, seconds=30):
        pass
    assert journal.fault() is None
    assert (tmp_path / "damaged" / "1" / "journal.jsonl").read_bytes() == damaged
    assert [event["event"] for event in journal.read()][-3:] == ["repaired", "attempt_started", "attempt_ended"]
