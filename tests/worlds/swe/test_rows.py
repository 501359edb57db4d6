"""Rows of SWE-Bench's own format: every kind of file gives the same rows, and what is wrong is named."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from crl.errors import BadInput
from crl.worlds.swe.rows import load_rows

OFFICIAL = {
    "repo": "someone/thing",
    "instance_id": "someone__thing-1",
    "base_commit": "0" * 40,
    "patch": "diff --git a/x.py b/x.py\n",
    "test_patch": "diff --git a/t.py b/t.py\n",
    "problem_statement": "It breaks.",
    "hints_text": "",
    "created_at": "2022-03-03T15:14:54Z",
    "version": "4.3",
    "FAIL_TO_PASS": '["t.py::test_a", "t.py::test_b[a - b]"]',
    "PASS_TO_PASS": "[]",
    "environment_setup_commit": "1" * 40,
}


def _second(**changes):
    return {**OFFICIAL, "instance_id": "someone__thing-2", "FAIL_TO_PASS": '["t.py::test_c"]', **changes}


def _write(folder, kind, records):
    path = folder / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("\n".join(json.dumps(each) for each in records) + "\n\n", encoding="utf-8")
    elif kind == "json":
        path.write_text(json.dumps(records), encoding="utf-8")
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(records), path)
    else:
        path = folder / "saved"
        path.mkdir()
        for number, record in enumerate(records):
            table = pa.Table.from_pylist([record])
            with (
                pa.OSFile(str(path / f"data-{number}.arrow"), "wb") as file,
                pa.ipc.new_stream(file, table.schema) as out,
            ):
                out.write_table(table)
        names = [{"filename": f"data-{number}.arrow"} for number in range(len(records))]
        (path / "state.json").write_text(json.dumps({"_data_files": names}))
    return path


@pytest.mark.parametrize("kind", ["jsonl", "json", "parquet", "saved"])
def test_every_kind_of_file_gives_the_same_rows(tmp_path, kind):
    rows = load_rows(_write(tmp_path, kind, [OFFICIAL, _second()]))
    assert [row.instance_id for row in rows] == ["someone__thing-1", "someone__thing-2"]
    assert rows[0].fail_to_pass == ("t.py::test_a", "t.py::test_b[a - b]") and rows[0].pass_to_pass == ()
    assert rows[0].model_extra["version"] == "4.3"


def test_the_library_s_own_folder_is_read(tmp_path):
    datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
    data = datasets.Dataset.from_list([OFFICIAL, _second()])
    data.save_to_disk(str(tmp_path / "one"), num_shards=2)
    datasets.DatasetDict({"test": data}).save_to_disk(str(tmp_path / "split"))
    assert [row.instance_id for row in load_rows(tmp_path / "one")] == ["someone__thing-1", "someone__thing-2"]
    assert len(load_rows(tmp_path / "split" / "test")) == 2
    with pytest.raises(BadInput, match="has splits") as refused:
        load_rows(tmp_path / "split")
    assert "test" in str(refused.value)


def test_lists_are_taken_as_they_are(tmp_path):
    path = _write(tmp_path, "jsonl", [_second(FAIL_TO_PASS=["a", "b", "a"], PASS_TO_PASS=["b", "c"])])
    assert load_rows(path)[0].tests == ("a", "b", "c")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"FAIL_TO_PASS": "t.py::test_a"}, ["FAIL_TO_PASS", "JSON list"]),
        ({"FAIL_TO_PASS": "[]"}, ["FAIL_TO_PASS", "nothing would decide"]),
        ({"PASS_TO_PASS": [1]}, ["PASS_TO_PASS"]),
        ({"patch": 3}, ["column patch", "3"]),
        ({"base_commit": "--exec=x"}, ["column base_commit"]),
        ({"repo": None}, ["column repo"]),
        ({"instance_id": "someone__thing-1"}, ["instance_id", "line 1"]),
    ],
)
def test_what_is_wrong_is_named(tmp_path, change, words):
    path = _write(tmp_path, "jsonl", [OFFICIAL, _second(**change)])
    with pytest.raises(BadInput) as refused:
        load_rows(path)
    for word in [str(path), "line 2", *words]:
        assert word in str(refused.value)


def test_a_missing_column_is_named(tmp_path):
    record = _second()
    del record["problem_statement"]
    with pytest.raises(BadInput, match="column problem_statement: it is missing"):
        load_rows(_write(tmp_path, "parquet", [record]))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("rows.jsonl", b"{\n", "line 1"),
        ("rows.json", b"{}", "record 0, line 1"),
        ("rows.json", b"7", "'7' is no record"),
        ("rows.json", b"[{}] and more", "instance_id: it is missing"),
        ("rows.jsonl", b"\xff\xfe{", "rows.jsonl"),
        ("rows.jsonl", b"", "no row"),
        ("rows.parquet", b"PAR1nothing", "parquet"),
        ("rows.txt", b"a,b", "no known kind"),
        ("rows.arrow", b"nothing", "arrow"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=words) as refused:
        load_rows(tmp_path / name)
    assert name in str(refused.value)


def test_a_path_with_nothing_at_it_is_named(tmp_path):
    with pytest.raises(BadInput, match="no rows at"):
        load_rows(tmp_path / "gone")
