"""Logs beside the record: whatever happens to what a stage saw of them is noticed, and appending is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from crl.run.journal import Journal, JsonLines
from crl.run.logs import JOURNAL, LOGS, PRUNED, Seen, differing, marks
from tests.marks import sampled

Damage = Callable[[bytes], bytes | None]
DAMAGES: dict[str, Damage] = {
    "deleted": lambda content: None,
    "empty": lambda content: b"",
    "cut": lambda content: content[:-5],
    "first line gone": lambda content: content.partition(b"\n")[2],
    "changed": lambda content: content.replace(b"stage_started", b"stage_skipped", 1),
    "one bit": lambda content: bytes([content[0] ^ 1]) + content[1:],
}


def _seen(run: Path, stage: str) -> dict[str, list[Seen]]:
    return {name: [(int(mark["bytes"]), str(mark["sha256"]), stage)] for name, mark in marks(run).items()}


def test_what_is_appended_is_no_difference_and_read_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Seen] = []
    for number in range(5):
        Journal(tmp_path).record("stage_started", token=1, round_number=number, stage="collect")
        seen += _seen(tmp_path, f"{number:04d}/collect")[JOURNAL]
    assert [size for size, *_ in seen] == sorted({size for size, *_ in seen})
    assert differing(tmp_path / JOURNAL, reversed(seen)) is None
    read = []
    monkeypatch.setattr("crl.run.logs._blocks", lambda file, count: read.append(count) or iter(()))
    marks(tmp_path)
    assert read == [0]


@pytest.mark.parametrize("name", sampled(LOGS, 1))
@pytest.mark.parametrize("how", DAMAGES)
def test_any_damage_is_named_with_the_stage_that_saw_it_otherwise(tmp_path: Path, name: str, how: str) -> None:
    path, seen = tmp_path / name, list[Seen]()
    for number in range(3):
        JsonLines(path).append({"event": "stage_started", "round": number})
        seen += _seen(tmp_path, f"{number:04d}/plan")[name]
    content = DAMAGES[how](path.read_bytes())
    path.unlink() if content is None else path.write_bytes(content)
    found = differing(path, seen)
    assert found is not None and "/plan" in found
    JsonLines(path).append({"event": "another"})  # what comes later hides nothing
    JsonLines(path).append({"event": "another", "more": "x" * 1000})
    assert differing(path, seen) is not None


def test_what_is_no_file_stops_no_commit(tmp_path: Path) -> None:
    (tmp_path / JOURNAL).mkdir()
    (tmp_path / PRUNED).symlink_to("/dev/zero")
    assert marks(tmp_path) == {}
    assert differing(tmp_path / PRUNED, [(1, "", "0001/plan")]) == "it is no file"
    assert "cannot be read" in str(differing(tmp_path / JOURNAL, [(1, "", "0001/plan")]))
