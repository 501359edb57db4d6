"""Files of questions: every form is read, what is missing or damaged is refused, sides are kept apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from crl.envs import check_environment
from crl.errors import BadInput
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.hotpotqa.files import DISTRACTOR, FULLWIKI, TRAIN, paragraphs_of, read
from crl.worlds.hotpotqa.questions import Paragraph
from tests.worlds.hotpotqa.hotpotqa_files import in_columns, plain, record, write

REAL = Path("/work/shared/data/hotpotqa")


def files(folder: Path, **changes: Any) -> HotpotQAConfig:
    return HotpotQAConfig.model_validate({"questions": "files", "directory": str(folder), "train_file": "a", **changes})


def test_the_official_form_and_columns_are_the_same_questions(tmp_path: Path) -> None:
    records = [record(number) for number in range(3)]
    write(tmp_path / "official.json", records)
    write(tmp_path / "columns.json", [in_columns(each) for each in records])
    official = read(tmp_path / "official.json")
    assert official == read(tmp_path / "columns.json")
    first = official[0]
    assert (first.id, first.answer, first.kind) == (records[0]["_id"], "a jackdaw", "bridge")
    assert first.support == ("Old Mill", "Ada Quill")
    assert first.paragraphs[0] == Paragraph("Old Mill", "The Old Mill stands in Farrow. It was built by Ada Quill.")
    assert first.paragraphs[0] is official[2].paragraphs[0], "kept once"
    assert [each.title for each in paragraphs_of(official)] == ["Old Mill", "Ada Quill", "Farrow"]


def test_the_plain_form_is_searched_in_the_paragraphs_of_another_file(tmp_path: Path) -> None:
    write(tmp_path / "a", [plain(record(number)) for number in range(40)])
    write(tmp_path / "b", [record(99)])
    assert read(tmp_path / "a")[0].paragraphs == () == read(tmp_path / "a")[0].support
    with pytest.raises(BadInput, match="questions have no paragraphs, such as 'Which bird") as caught:
        files(tmp_path).make()
    assert "paragraphs_file" in str(caught.value)
    with pytest.raises(BadInput, match="the file has questions and no paragraph"):
        files(tmp_path, scope="file").make()
    environment = files(tmp_path, scope="file", paragraphs_file="b").make()
    environment.reset_many([0])
    step = environment.step_many({0: "search[jackdaw]"})[0]
    assert step.observation.startswith(
        "Found for jackdaw:\n[1] Ada Quill: Ada Quill (1801–1870) was a builder. She kept"
    )


def test_one_file_is_parted_by_the_words_of_its_questions(tmp_path: Path) -> None:
    write(tmp_path / "a", [record(number) for number in range(200)])
    config = files(tmp_path)
    environment = config.make()
    held_out = config.held_out_levels
    assert held_out is not None and 25 <= held_out <= 75
    trained = {environment.question_of(seed).text for seed in range(1000)}
    kept = {environment.question_of(10**6 + seed).text for seed in range(held_out)}
    assert len(kept) == held_out and len(trained) == 200 - held_out and not trained & kept
    assert environment.question_of(10**6 + held_out) == environment.question_of(10**6), "again from the first"


def test_a_question_of_training_that_is_held_out_too_is_left_out(tmp_path: Path) -> None:
    write(tmp_path / "a", [record(0), record(1), record(2)])
    shouted = {**record(1), "question": record(1)["question"].upper(), "_id": "other"}
    write(tmp_path / "b", [shouted, record(3)])
    config = files(tmp_path, held_out_file="b")
    environment = config.make()
    assert {environment.question_of(seed).id for seed in range(10)} == {record(0)["_id"], record(2)["_id"]}
    assert config.held_out_levels == 2
    together = files(tmp_path, held_out_file="b", held_out_from=None)
    assert together.held_out_levels is None
    assert len({together.make().question_of(seed).id for seed in range(10)}) == 5
    write(tmp_path / "b", [record(0), record(1), record(2)])
    with pytest.raises(BadInput, match="there is no question to train on: 3 and 3"):
        config.make()


def test_the_official_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOTPOTQA_DATA", str(tmp_path))
    write(tmp_path / TRAIN, [record(0)])
    write(tmp_path / DISTRACTOR, [record(1)])
    write(tmp_path / FULLWIKI, [record(2)])
    for setting, number in (("distractor", 1), ("fullwiki", 2)):
        environment = HotpotQAConfig.model_validate({"questions": setting}).make()
        assert environment.question_of(5).id == record(0)["_id"]
        assert environment.question_of(10**6 + 5).id == record(number)["_id"]


def test_missing_files_are_refused_with_source_license_and_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTPOTQA_DATA", str(tmp_path))
    with pytest.raises(BadInput, match=f"files are missing: {TRAIN}, {DISTRACTOR}") as caught:
        check_environment(HotpotQAConfig(questions="distractor"))
    told = str(caught.value)
    for part in ("CC BY-SA 4.0", f"curl -fLO http://curtis.ml.cmu.edu/datasets/hotpot/{TRAIN}", str(tmp_path),
                 "$HOTPOTQA_DATA", "environment.questions: own"):  # fmt: skip
        assert part in told
    with pytest.raises(BadInput, match="files are missing: a") as caught:
        files(tmp_path / "none").make()
    assert "curl" not in str(caught.value) and "correct the names" in str(caught.value)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ("no record", "it is 'no record'"),
        (record(answer=None), "its answer is None"),
        ({key: value for key, value in record().items() if key != "answer"}, "test questions have no answers"),
        (record(question="  "), "its question is '  '"),
        (record(context="text"), "its context is 'text'"),
        (record(context=[["Title", "no list"]]), r"paragraph 0 is \['Title', 'no list'\]"),
        (record(context={"title": ["a"], "sentences": []}), "title and sentences of its context do not match"),
        (record(supporting_facts=[["Old Mill"]]), "its supporting_facts are"),
    ],
)
def test_a_damaged_record_is_refused_with_its_place(tmp_path: Path, changed: Any, told: str) -> None:
    write(tmp_path / "a", [record(0), changed])
    with pytest.raises(BadInput, match=told) as caught:
        files(tmp_path).make()
    assert f"{tmp_path / 'a'}, record 1" in str(caught.value)


@pytest.mark.parametrize("text", ["{}", "[", '[{"a": 1}', "[]", "nothing"])
def test_what_is_no_list_of_questions_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "a").write_text(text)
    with pytest.raises(BadInput, match="HotpotQA's data cannot be read"):
        files(tmp_path).make()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"questions": "files"}, "questions: files needs train_file"),
        ({"train_file": "a"}, "train_file needs questions: files, found questions: own"),
        ({"questions": "files", "train_file": "a", "paragraphs_file": "b"}, "with scope: file only"),
    ],
)
def test_settings_that_say_nothing_together_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        HotpotQAConfig.model_validate(settings)


# -- files that others hand around -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "count", "bare"),
    [
        ("hipporag_hotpotqa_train100.json", 100, False),
        ("hotpot_distractor_sample100.json", 100, False),
        ("hotpot_dev_v1_simplified.json", 7405, True),
    ],
)
def test_the_files_of_others_are_read_as_they_are(name: str, count: int, bare: bool) -> None:
    if not (REAL / name).is_file():
        pytest.skip(f"{REAL / name} is not here")
    questions = read(REAL / name)
    raw = json.loads((REAL / name).read_text(encoding="utf-8"))
    assert len(questions) == len(raw) == count
    assert [each.answer for each in questions] == [" ".join(each["answer"].split()) for each in raw]
    for question in questions:
        assert bool(question.paragraphs) is not bare
        assert set(question.support) <= {paragraph.title for paragraph in question.paragraphs}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hipporag_hotpotqa_train100.json", "hotpot_distractor_sample100.json"])
@pytest.mark.parametrize("scope", ["question", "file"])
def test_the_oracle_answers_nearly_all_questions_of_others(name: str, scope: str) -> None:
    if not (REAL / name).is_file():
        pytest.skip(f"{REAL / name} is not here")
    config = files(REAL, train_file=name, scope=scope, held_out_from=None)
    check_environment(config)
    environment = config.make()
    environment.reset_many(range(100))
    found = 0
    for slot in range(100):
        while (action := environment.oracle(slot)) is not None:
            step = environment.step_many({slot: action})[slot]
            assert step.legal, action
        assert step.success and step.reward == 1, environment.question_of(slot)
        found += step.feedback.endswith("2 were found: " + ", ".join(environment.question_of(slot).support) + ".")
    assert found >= 90


@given(st.sets(st.integers(0, 300), min_size=1, max_size=6))
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_without_held_out_questions_all_of_a_file_are_played(tmp_path: Path, numbers: set[int]) -> None:
    """Wherever their hashes would have put them."""
    write(tmp_path / "a", [record(number) for number in sorted(numbers)])
    config = files(tmp_path, held_out_from=None)
    environment = config.make()
    played = {environment.question_of(seed).text for seed in range(len(numbers))}
    assert played == {record(number)["question"] for number in numbers}
