"""Seconds of rounds come from manifests alone, so a commit whose record has another format can be compared with."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path

import pytest

from benchmarks import round as measured
from crl.errors import OtherFormat, RecordDamaged
from crl.records.base import RECORD_FORMAT
from crl.run.experiment_file import EXPERIMENT, check_format
from crl.run.files import sha256_bytes
from tests.unit.run.support import ORDER, finished_run


def test_a_record_of_another_format_gives_the_same_seconds(tmp_path: Path) -> None:
    run = finished_run(tmp_path)
    found = measured.seconds(run.path, [2])
    own = {stage: run.manifest(2, stage).provenance for stage in ORDER}
    assert {stage: found[stage] for stage in ORDER} == {stage: [own[stage]["seconds"]] for stage in ORDER}
    assert found[measured.STAGES] == [pytest.approx(sum(each["seconds"] for each in own.values()))]
    before = max(run.manifest(1, stage).provenance["committed"] for stage in ORDER)
    last = max(each["committed"] for each in own.values())
    between = datetime.fromisoformat(last) - datetime.fromisoformat(before)
    assert found[measured.ROUND] == [between.total_seconds()]

    file = run.path / EXPERIMENT
    header, _, body = file.read_bytes().partition(b"\n")
    other = body.replace(f"format: {RECORD_FORMAT}\n".encode(), b"format: 1\n")
    assert other != body
    file.write_bytes(header.replace(sha256_bytes(body).encode(), sha256_bytes(other).encode()) + b"\n" + other)
    with pytest.raises(OtherFormat):
        check_format(run.path)
    assert measured.seconds(run.path, [2]) == found

    (run.path / "rounds" / "0002" / ORDER[0] / "manifest.json").write_text("{")
    with pytest.raises(RecordDamaged):
        measured.seconds(run.path, [2])


def test_ways_are_chosen_by_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert [way.name for way in measured.ways(["overlap"], None, None)] == [measured.BASELINE, "overlap, one engine"]
    monkeypatch.setattr(sys, "argv", ["round.py", "--ways", "sideways"])
    with pytest.raises(SystemExit) as ended:
        measured.main()
    assert ended.value.code == 2 and "overlap2" in capsys.readouterr().err
