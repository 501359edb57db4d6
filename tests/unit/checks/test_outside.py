"""The door for rows from outside: each place where a person's rows come in goes through a checkpoint first."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.checks.outside import require_sound
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.preflight import checks
from crl.recipes.complementary.recorded import require_games
from crl.records import OutsideRows, schema_of
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import gather
from crl.worlds.webshop.products import ProductRow
from tests.record.test_import import experiment
from tests.unit.report.scripted import Ask, ScriptedRun

ROOT = Path(__file__).parents[3]
START = "0" * 16


@pytest.mark.slow
def test_an_exported_bank(tmp_path: Path) -> None:
    with ScriptedRun(tmp_path, experiment("first")) as run:
        run.initialize().play(Ask("add", "go left"), Ask("add", "go right"))
    write_folder(gather(run.path, 1), tmp_path / "bank", "parquet")
    bank = read_folder(tmp_path / "bank")
    assert bank.tables["entries"].num_rows == 2
    card = tmp_path / "bank" / "provenance.json"
    made = json.loads(card.read_text(encoding="utf-8"))
    card.write_text(json.dumps({**made, "families": ["pond"]}), encoding="utf-8")
    with pytest.raises(BadInput, match="family is one of pond' is broken in 2 rows: row 0") as refused:
        read_folder(tmp_path / "bank")
    told = str(refused.value)
    assert "entries.parquet cannot be taken" in told and "crl bank export" in told and "Expected: rows" in told


def changed(path: Path, folder: Path, **environment: Any) -> Any:
    """An experiment that plays with files of somebody."""
    data = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    for family in data["method"]["families"]:
        family["environment"] |= environment
    data["method"]["families"] = data["method"]["families"][:1]
    (folder / "prompts").symlink_to(ROOT / "conf" / "prompts")
    (folder / "made.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    return load_experiment(folder / "made.yaml")


def refused_files(made: Any) -> str:
    (check,) = [check for name, check in checks(made) if name.startswith("the files of family")]
    with pytest.raises(BadInput) as refused:
        check()
    return str(refused.value)


def test_files_of_questions(tmp_path: Path) -> None:
    context = [["Oslo", ["A city."]], ["Bergen", ["A town."]]]
    listed = [
        {"_id": f"q{number}", "question": f"Which is number {number}?", "answer": "Oslo", "context": context}
        for number in range(12)
    ]
    listed[5]["_id"] = "q4"
    (tmp_path / "mine.json").write_text(json.dumps(listed), encoding="utf-8")
    made = changed(
        Path("conf/hotpotqa.yaml"), tmp_path, questions="files", train_file="mine.json", directory=str(tmp_path)
    )
    told = refused_files(made)
    assert "mine.json cannot be taken" in told and "question_id is unique' is broken in 2 rows" in told


def test_rows_of_tasks(tmp_path: Path) -> None:
    listed = [
        {"instance_id": f"a__b-{number}", "repo": "a/b", "base_commit": "0" * 40,
         "problem_statement": f"It is wrong: {number}.", "patch": "", "test_patch": "",
         "FAIL_TO_PASS": ["test_a"], "PASS_TO_PASS": []}
        for number in range(8)
    ]  # fmt: skip
    listed[2]["problem_statement"] = "   "
    (tmp_path / "tasks.json").write_text(json.dumps(listed), encoding="utf-8")
    told = refused_files(changed(Path("conf/swe.yaml"), tmp_path, rows=str(tmp_path / "tasks.json")))
    assert "the problem is said in words' (column problem_statement) is broken in 1 row" in told


def test_recorded_games(tmp_path: Path) -> None:
    data = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text(encoding="utf-8"))
    environment = data["method"]["families"][0]["environment"]
    game = {"seed": 1, "start": START, "success": True, "turns": [{"text": "up", "action": "up"}]}
    mute = {**game, "turns": [{"text": "what?", "action": None}]}
    recorded = [{"environment": environment, "games": [game, mute]}]
    data["method"]["recipe"]["warm_start"] |= {"demonstrations": "recorded", "recorded": recorded}
    (tmp_path / "prompts").symlink_to(ROOT / "conf" / "prompts")
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    with pytest.raises(BadInput, match="actions is at least 1' is broken in 1 row: row 1") as refused:
        require_games(load_experiment(tmp_path / "made.yaml").method)
    assert "crl env play NAME --record FILE" in str(refused.value)


def test_no_rows_are_sound() -> None:
    require_sound(OutsideRows(ProductRow, schema_of(ProductRow).empty_table(), "a file", "nothing"))
