"""The run directory: the frozen method, what is complete, what reading returns and refuses."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from crl.config import Method
from crl.errors import FrozenMethodChanged, RecordDamaged, RunDirectoryUnusable
from crl.records import Episode, Metric, Weights, rows_of, schema_of
from crl.run.directory import RunDirectory
from tests.unit.run.support import experiment, finished_run, rows


def test_a_run_opens_with_the_method_it_was_made_with(tmp_path: Path) -> None:
    made = RunDirectory.create_or_open(experiment(), tmp_path)
    opened = RunDirectory.open(tmp_path / "small")
    assert (opened.experiment_name, opened.method, opened.path) == ("small", made.method, tmp_path / "small")
    assert opened.method_digest == made.method.digest()
    content = yaml.safe_load((tmp_path / "small" / "experiment.yaml").read_text())
    assert content["name"] == "small"
    assert Method.model_validate(content["method"]) == made.method


def test_text_that_is_hard_for_yaml_comes_back_whole(tmp_path: Path) -> None:
    hard = "{goal}: 'quoted' \"x\"\n\n- yes: no # 1e-3 \t\x07 é ✓ \u2028 ~ \ntrailing  \n"
    prompt = {"system": hard, "first": "{goal}"}
    wanted = experiment(prompts={"actor": prompt, "distill": prompt, "merge": prompt}, seed=2**32 - 1)
    RunDirectory.create_or_open(wanted, tmp_path)
    assert RunDirectory.open(tmp_path / "small").method == wanted.method
    RunDirectory.create_or_open(wanted, tmp_path)


def test_another_method_is_refused_with_its_keys(tmp_path: Path) -> None:
    RunDirectory.create_or_open(experiment(seed=1), tmp_path)
    with pytest.raises(FrozenMethodChanged) as raised:
        changed = {"kind": "complementary", "retrieval": {"count_weight": 0.5}}
        RunDirectory.create_or_open(experiment(seed=2, recipe=changed), tmp_path)
    assert "seed: 1 in the run, 2 now" in raised.value.found
    assert "recipe.retrieval.count_weight: 0.4 in the run, 0.5 now" in raised.value.found
    assert len(raised.value.found.splitlines()) == 3
    assert raised.value.exit_code == 2


def test_runtime_may_change(tmp_path: Path) -> None:
    first = experiment()
    RunDirectory.create_or_open(first, tmp_path)
    changed = first.model_copy(update={"runtime": first.runtime.model_copy(update={"shards": 4})})
    RunDirectory.create_or_open(changed, tmp_path)


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises(RunDirectoryUnusable) as raised:
        RunDirectory.create_or_open(experiment(), tmp_path / "file")
    assert raised.value.exit_code == 2
    with pytest.raises(RunDirectoryUnusable, match="cannot be written"):
        RunDirectory.create_or_open(experiment(), Path("/proc"))


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryUnusable, match=r"no experiment\.yaml"):
        RunDirectory.open(tmp_path)


def test_rounds_stages_and_rows(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=2)
    assert run.rounds() == [1, 2]
    assert run.complete_stages(2) == ["plan", "collect", "update_actor"]
    assert run.complete_stages(3) == []
    assert run.is_complete(2, "plan")
    assert not run.is_complete(3, "plan")
    assert run.stage_path(2, "plan") == run.path / "rounds" / "0002" / "plan"
    assert rows_of(Metric, run.read(2, "plan", Metric)) == rows(Metric, 2, "plan")
    assert run.read(2, "plan", Metric).schema == schema_of(Metric)
    assert run.manifest(2, "update_actor").rows() == {"metrics": 50, "weights": 1}


def test_a_table_a_stage_did_not_write_is_empty_with_its_schema(tmp_path: Path) -> None:
    table = finished_run(tmp_path, rounds=1).read(1, "plan", Episode)
    assert isinstance(table, pa.Table)
    assert (table.num_rows, table.schema) == (0, schema_of(Episode))


def test_reading_refuses_a_damaged_file(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=1)
    path = run.stage_path(1, "update_actor") / "weights.parquet"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(RecordDamaged, match=r"weights\.parquet is not the file that was committed"):
        run.read(1, "update_actor", Weights)
    path.unlink()
    with pytest.raises(RecordDamaged, match="No such file"):
        run.read(1, "update_actor", Weights)
    with pytest.raises(RecordDamaged):
        run.read(9, "plan", Metric)


def test_a_lost_experiment_file_is_written_again_from_the_same_method_only(tmp_path: Path) -> None:
    run = finished_run(tmp_path, rounds=1)
    before = (run.path / "experiment.yaml").read_bytes()
    for damage in (b"", b"name: other\n"):
        (run.path / "experiment.yaml").write_bytes(damage)
        with pytest.raises(RecordDamaged):
            RunDirectory.open(run.path)
        with pytest.raises(RunDirectoryUnusable, match="missing or damaged"):
            RunDirectory.create_or_open(experiment(seed=3), tmp_path)
        RunDirectory.create_or_open(experiment(), tmp_path)
        assert (run.path / "experiment.yaml").read_bytes() == before
    (run.path / "experiment.yaml").unlink()
    with pytest.raises(RunDirectoryUnusable, match="missing or damaged"):
        RunDirectory.create_or_open(experiment(seed=3), tmp_path)
    RunDirectory.create_or_open(experiment(), tmp_path)
    assert (run.path / "experiment.yaml").read_bytes() == before


def test_a_run_can_be_moved(tmp_path: Path) -> None:
    run = finished_run(tmp_path / "a", rounds=1)
    shutil.copytree(run.path, tmp_path / "b" / "small")
    moved = RunDirectory.open(tmp_path / "b" / "small")
    assert moved.manifest(1, "collect") == run.manifest(1, "collect")
