"""Records in JSON files: whatever a file holds is read, or refused with its place; nothing is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.config.load import find_expectations
from crl.errors import BadInput
from crl.worlds.hotpotqa.files import read
from crl.worlds.json_files import check_spelling, records, table
from crl.worlds.swe.rows import load_rows
from crl.worlds.webshop import WebShopConfig
from tests.worlds.hotpotqa.hotpotqa_files import record

RELAXED = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
BLANKS = st.text(" \t\n", max_size=2)
VALUE = st.recursive(
    st.none() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
ROW = {"instance_id": "t", "repo": "a/b", "base_commit": "c", "problem_statement": "d", "FAIL_TO_PASS": ["t"]}
RECORD = st.dictionaries(st.text(max_size=4), VALUE, max_size=3)


def refuse(found: str, expected: str, where: str) -> BadInput:
    return BadInput(found, expected=expected, where=where)


def listed(path: Path) -> list[Any]:
    return [value for _, _, value in records(path, refuse, of="records")]


@st.composite
def written(draw: st.DrawFn) -> tuple[str, list[Any]]:
    """A file in one of the ways in which records are handed around, and its records."""
    text, whole = draw(BLANKS), []
    for _ in range(draw(st.integers(1, 3))):
        part = draw(st.lists(RECORD, min_size=1, max_size=3))
        whole += part
        if draw(st.booleans()):
            text += json.dumps(part, indent=draw(st.sampled_from([None, 1]))) + draw(BLANKS)
        else:
            text += "".join(json.dumps(each, ensure_ascii=draw(st.booleans())) + draw(BLANKS) for each in part)
    return text, whole


@RELAXED
@given(written())
def test_arrays_lines_and_mixtures_are_read_to_their_end(tmp_path: Path, made: tuple[str, list[Any]]) -> None:
    path = tmp_path / "a.json"
    path.write_text(made[0], encoding="utf-8", newline="")
    assert listed(path) == made[1]


@RELAXED
@given(written(), st.sampled_from(["x", ",", "]", "}", "7", "null", '"a"', "[1", "{", "\x00", "\x1a", "[]]"]))
def test_a_rest_is_refused_with_its_place(tmp_path: Path, made: tuple[str, list[Any]], rest: str) -> None:
    path = tmp_path / "a.json"
    path.write_text(made[0] + "\n" + rest, encoding="utf-8", newline="")
    with pytest.raises(BadInput) as refused:
        listed(path)
    line = made[0].count("\n") + 2
    assert f"{path}, record" in refused.value.where and f"line {line}" in refused.value.where


@RELAXED
@given(st.lists(RECORD, min_size=1, max_size=4), st.data())
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, whole: list[Any], data: st.DataObject) -> None:
    text = json.dumps(whole)
    path = tmp_path / "a.json"
    path.write_text(text[: data.draw(st.integers(1, len(text) - 1))])
    with pytest.raises(BadInput, match=r"a\.json"):
        listed(path)


def test_records_that_are_read_in_pieces(tmp_path: Path) -> None:
    whole = [{"number": number, "text": "word " * 200} for number in range(9000)]
    assert len(json.dumps(whole)) > 2 << 22
    for text in (
        "".join(json.dumps(whole[at : at + 3000]) for at in range(0, 9000, 3000)),
        "\n".join(map(json.dumps, whole)),
    ):
        (tmp_path / "a.json").write_text(text)
        assert listed(tmp_path / "a.json") == whole
        (tmp_path / "a.json").write_text(text + "[")
        with pytest.raises(BadInput, match="record 9000"):
            listed(tmp_path / "a.json")


def test_all_who_read_records_read_every_batch(tmp_path: Path) -> None:
    questions = [record(number) for number in range(24)]
    (tmp_path / "batches.json").write_text("".join(json.dumps(questions[at : at + 8]) for at in range(0, 24, 8)))
    (tmp_path / "lines.json").write_text("\n".join(map(json.dumps, questions)))
    assert len(read(tmp_path / "batches.json")) == 24 and read(tmp_path / "lines.json") == read(
        tmp_path / "batches.json"
    )
    rows = [{**ROW, "instance_id": f"t-{number}"} for number in range(6)]
    for name in ("rows.json", "rows.jsonl"):
        (tmp_path / name).write_text(json.dumps(rows[:3]) + json.dumps(rows[3:]))
        assert [row.instance_id for row in load_rows(tmp_path / name)] == [f"t-{number}" for number in range(6)]
    products = [{"asin": f"B{number}", "name": f"thing {number}"} for number in range(6)]
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps(products[:3]) + "\n" + json.dumps(products[3:]))
    wanted = {f"B{number}": {"attributes": ["blue"], "instruction": "a thing", "instruction_attributes": ["blue"]}
              for number in range(6)}  # fmt: skip
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(wanted))
    assert len(WebShopConfig(catalog="small", directory=str(tmp_path)).sold().products) == 6


def test_a_key_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('[{"a": 1}, {"b": {"c": 1, "c": 2}}]')
    with pytest.raises(BadInput, match="'c' is there twice") as refused:
        listed(path)
    assert "record 1, line 1" in refused.value.where
    path.write_text('{"B1": {"attributes": []}, "B1": {}}')
    with pytest.raises(BadInput, match="'B1' is there twice"):
        table(path, refuse, of="products")
    (tmp_path / "expectations").mkdir()
    (tmp_path / "expectations/episodes.json").write_text('{"expectations": [], "expectations": []}')
    with pytest.raises(BadInput, match="'expectations' is there twice"):
        find_expectations(tmp_path)


SPELLINGS = [
    str.upper,
    str.title,
    lambda name: name.replace("_", "-"),
    lambda name: f"{name}s",
    lambda name: f" {name}",
]
FIELDS = ("question", "type", "context", "supporting_facts", "small_description", "PASS_TO_PASS", "test_patch")


@given(st.sampled_from(FIELDS), st.sampled_from(SPELLINGS))
@settings(max_examples=20, deadline=None)
def test_a_key_that_nearly_is_a_known_one_is_refused(field: str, spelling: Any) -> None:
    wrong = spelling(field)
    if wrong == field or (field == "type" and wrong == "types"):  # four letters: another word as likely
        return
    with pytest.raises(BadInput) as refused:
        check_spelling({wrong: 1}, FIELDS, refuse, "here")
    assert repr(wrong) in refused.value.found and repr(field) in refused.value.found
    check_spelling({wrong: 1, field: 2}, FIELDS, refuse, "here")  # what is needed is there


def test_columns_of_public_files_are_taken(tmp_path: Path) -> None:
    """Columns of data sets in these formats that no reader knows, none of which is a slip."""
    others = (
        "hints_text", "created_at", "version", "environment_setup_commit", "difficulty", "FAIL_TO_FAIL", "docker_image",
        "PASS_TO_FAIL", "image_assets", "test_cmds", "log_parser", "license_name", "repo_language", "patch_length",
    )  # fmt: skip
    (tmp_path / "rows.json").write_text(json.dumps([{**ROW, **dict.fromkeys(others, "x")}]))
    assert len(load_rows(tmp_path / "rows.json")) == 1
    question = {"question": "q", "answer": "a", "id": "1", "level": "hard", "topic": "x", "answers": ["a"]}
    (tmp_path / "a.json").write_text(json.dumps([question]))
    assert len(read(tmp_path / "a.json")) == 1
