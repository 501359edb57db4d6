"""`make gpu`: what has no GPU is skipped with its reason, what runs is bounded and told, a failure is the exit code."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import gpu

ROOT = Path(__file__).parents[3]


def test_without_a_gpu_every_piece_is_skipped_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "device_name", lambda: None)
    assert gpu.main(["--folder", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for name in gpu.pieces(None):
        assert f"gpu-{name}: SKIPPED: torch sees no GPU" in said
        assert json.loads((tmp_path / f"{name}.json").read_text())["state"] == "skipped"
    rows = [line for line in (tmp_path / "table.md").read_text().splitlines() if line.startswith("| ")]
    assert len(rows) == 1 + len(gpu.pieces(None)) and all("no GPU" in row for row in rows[1:])


def test_pieces_are_run_apart_bounded_and_told_with_the_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made = {
        "good": gpu.Piece(("-c", "print('300 turns/s')"), "speed"),
        "bad": gpu.Piece(("-c", "raise SystemExit('out of memory')"), "speed"),
        "long": gpu.Piece(("-c", "import time; print('begun', flush=True); time.sleep(600)"), "speed"),
        "lacking": gpu.Piece(("-c", ""), "speed", lambda: "no model"),
    }
    monkeypatch.setattr(gpu, "pieces", lambda model: made)
    monkeypatch.setattr(gpu, "device_name", lambda: "Made GPU")
    assert gpu.main(["good", "lacking", "--folder", str(tmp_path)]) == 0
    assert gpu.main(["bad", "--folder", str(tmp_path)]) == 1
    table = (tmp_path / "table.md").read_text()
    assert "| good | speed | Made GPU | done |" in table and "300 turns/s" in table, "found on another day"
    assert "| lacking | speed | Made GPU | skipped | 0 | no model |" in table
    assert "| bad | speed | Made GPU | failed |" in table and "out of memory" in table
    cut_off = gpu.run("long", made["long"], "Made GPU", limit_seconds=2)
    assert cut_off.state == "cut off" and cut_off.said in ((), ("begun",))
    with pytest.raises(SystemExit) as ended:
        gpu.main(["nothing", "--folder", str(tmp_path)])
    assert ended.value.code == 2 and "there are good, bad" in capsys.readouterr().err


@pytest.mark.parametrize(("visible", "expected"), [(None, "0"), ("2,3", "2"), ("MIG-a, MIG-b", "MIG-a")])
def test_a_piece_sees_the_first_gpu_alone(visible: str | None, expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL refuses to train where several are visible to one process."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    code = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"
    assert gpu.run("made", gpu.Piece(("-c", code), "devices"), "Made GPU").said == (expected,)


def test_the_makefile_has_a_target_a_piece() -> None:
    targets = re.search(r"^GPU_PIECES := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets is not None and targets[1].split() == list(gpu.pieces(None))
    assert gpu.LIMIT_SECONDS <= 540


def test_every_piece_names_a_command_of_this_project_or_says_that_it_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    for name, piece in gpu.pieces(str(tmp_path)).items():
        script = Path(piece.command[0])
        assert script.is_file() or piece.command[:2] == ("-m", "pytest") or piece.missing() is not None, name
    assert gpu.pieces(None)["round"].missing() is not None and gpu.pieces(str(tmp_path))["round"].missing() is None
