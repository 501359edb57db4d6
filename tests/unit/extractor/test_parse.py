"""Outputs judged: each reason code by example, both forms, and reading what was written."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.extractor.formats import ParsedOperation as Op
from crl.extractor.formats import ReasonCode, write_operations
from crl.extractor.parse import parse_output
from crl.text.answers import THOUGHT_TAG


def judge(text, form, **options):
    options = {"max_operations": 3, "max_characters": 40, "guided": True} | options
    return parse_output(text, format=form, **options)


def merge(text, form="lines", source_count=4, **options):
    return judge(text, form, kind="merge", source_count=source_count, **options)


GOOD = [
    ("lines", "ADD: go north", [Op("add", "go north")], "add"),
    ("lines", "\n  add :  go: north  \n\n", [Op("add", "go: north")], "add"),
    ("lines", "RETURN", [Op("return")], "return"),
    ("lines", "UPDATE: {b}\r\nADD: a", [Op("update", "{b}"), Op("add", "a")], "mixed"),
    ("json", '{"operations":[{"operation":"add","experience":"a"}]}', [Op("add", "a")], "add"),
    ("json", '[{"operation":"Update","experience":" a\\nb "}]', [Op("update", "a\nb")], "update"),
    ("json", '{"operation":"return","why":"nothing new"}', [Op("return")], "return"),
    ("json", '{"kind":"add","text":"a"}', [Op("add", "a")], "add"),
    ("json", '<think>[1] ```</think>\n[{"op":"add","text":"a"}]', [Op("add", "a")], "add"),
    ("lines", "<think>RETURN, or\nADD: b</THINK>\n\nADD: a", [Op("add", "a")], "add"),
    ("json", '[]</think>[{"op":"add","text":"a"}]', [Op("add", "a")], "add"),
    ("json", 'So:\n```json\n[{"op":"add","text":"a"}]\n```\nDone.', [Op("add", "a")], "add"),
    ("json", '```\n{}\n```\nno:\n```json\n[{"op":"add","text":"b"}]\n```', [Op("add", "b")], "add"),
    ("json", 'So:\n```json\n[{"op":"add","text":"a"}]\n', [Op("add", "a")], "add"),
    ("json", '```json\n[{"op":"add","text":"a"}]\n```\n```\nDone.', [Op("add", "a")], "add"),
    ("json", '```\n{}\n```\nno:\n```\n[{"op":"add","text":"b"}]', [Op("add", "b")], "add"),
]


@pytest.mark.parametrize(("form", "text", "operations", "verdict"), GOOD)
def test_in_form(form, text, operations, verdict):
    parsed = judge(text, form)
    assert (parsed.reason_code, list(parsed.operations), parsed.verdict) == (ReasonCode.ok, operations, verdict)


BAD = [
    ("unfinished_thought", "lines", "<think>\nADD: a"),
    ("unfinished_thought", "json", '<think>[{"op":"add","text":"a"}]'),
    ("unfinished_thought", "lines", "<think>x</think>ADD: a\n<THINK>or RETURN?"),
    ("empty", "lines", "<think>ADD: a</think>\n"),
    ("empty", "lines", ""),
    ("empty", "json", " \n\t"),
    ("no_operation", "json", "[]"),
    ("no_operation", "json", '{"operations":[]}'),
    ("bad_json", "json", "ADD: go north"),
    ("bad_json", "json", '[{"operation":"add","experience":"a"}'),
    ("bad_json", "json", 'Here: [{"operation":"add","experience":"a"}]'),
    ("bad_json", "json", "[" * 100_000),
    ("bad_json", "json", "9" * 10_000),
    ("not_an_operation", "json", "null"),
    ("not_an_operation", "json", "NaN"),
    ("not_an_operation", "json", '{"operations":{"operation":"add"}}'),
    ("not_an_operation", "json", '["add"]'),
    ("not_an_operation", "json", '[{"operation":["add"]}]'),
    ("not_an_operation", "json", '[{"operation":"add","experience":["a"]}]'),
    ("not_an_operation", "lines", "I think the player should go north."),
    ("not_an_operation", "lines", "ADD: go north\nThat is all."),
    ("not_an_operation", "lines", "ADD go north"),
    ("not_an_operation", "lines", "ADD 3: go north"),
    ("not_an_operation", "lines", "RETURN to the start"),
    ("not_an_operation", "lines", "- ADD: go north"),
    ("unknown_operation", "lines", "DELETE: all"),
    ("unknown_operation", "lines", "KEEP 1"),
    ("unknown_operation", "json", '[{"operation":"merge","entries":[1,2],"experience":"a"}]'),
    ("too_many_operations", "lines", "\n".join(f"ADD: {n}" for n in range(4))),
    ("empty_text", "lines", "ADD:"),
    ("empty_text", "json", '[{"operation":"add","experience":" "}]'),
    ("empty_text", "json", '[{"operation":"update"}]'),
    ("text_too_long", "lines", "ADD: " + "x" * 41),
    ("bad_text", "json", '[{"operation":"add","experience":"\\ud800"}]'),
    ("bad_text", "json", '[{"operation":"add","experience":"a\\u0000"}]'),
    ("bad_text", "lines", "ADD: a\x1bb"),
    ("bad_text", "lines", "ADD: a\x85b"),
    ("empty_text", "lines", "ADD: \u200b"),
    ("mixed_return", "lines", "RETURN\nADD: a"),
    ("mixed_return", "lines", "RETURN\nRETURN"),
    ("duplicate_operation", "lines", "ADD: a\nADD: a"),
    ("duplicate_operation", "lines", "UPDATE: a\nADD: a"),
    ("duplicate_operation", "lines", "UPDATE: a\nUPDATE: b"),
]


@pytest.mark.parametrize(("reason", "form", "text"), BAD)
def test_out_of_form(reason, form, text):
    parsed = judge(text, form)
    assert (parsed.reason_code, parsed.operations, parsed.verdict) == (reason, (), "malformed")


def test_update_needs_a_guide():
    assert judge("UPDATE: a", "lines", guided=False).reason_code == "update_without_guide"
    assert judge("ADD: a", "lines", guided=False).reason_code == "ok"


def test_what_was_cut_off_is_malformed_as_a_whole():
    assert judge("ADD: go no", "lines", truncated=True).reason_code == "truncated"
    assert judge("<think>a</think>ADD: go no", "lines", truncated=True).reason_code == "truncated"
    assert judge("<think>ADD: go no", "lines", truncated=True).reason_code == "unfinished_thought"


def test_merge_in_form():
    parsed = merge("KEEP 1\nMERGE 2, 4: both: done\nDROP 3")
    assert list(parsed.operations) == [
        Op("keep", None, (1,)),
        Op("merge", "both: done", (2, 4)),
        Op("drop", None, (3,)),
    ]
    assert parsed.verdict == "merge"
    written = write_operations(parsed.operations, "json")
    assert merge(written, "json").operations == parsed.operations
    assert merge('[{"operation":"drop","entries":2}]', "json").operations == (Op("drop", None, (2,)),)
    # The limit on operations is distilling's: what is shown bounds a merge.
    assert merge("KEEP 1\nKEEP 2\nKEEP 3\nKEEP 4").reason_code == "ok"


@pytest.mark.parametrize(
    ("reason", "form", "text"),
    [
        ("bad_index", "lines", "KEEP 5"),
        ("bad_index", "lines", "KEEP 0"),
        ("bad_index", "lines", "KEEP"),
        ("bad_index", "lines", "KEEP -1"),
        ("bad_index", "lines", "KEEP ٣"),
        ("bad_index", "lines", "KEEP 1, ,2"),
        ("bad_index", "lines", "DROP " + "9" * 5000),
        ("bad_index", "lines", "MERGE 1: alone"),
        ("bad_index", "lines", "MERGE 1,1: twice"),
        ("bad_index", "json", '[{"operation":"keep","entries":[]}]'),
        ("bad_index", "json", '[{"operation":"keep","entries":[true]}]'),
        ("bad_index", "json", '[{"operation":"keep","entries":[1.0]}]'),
        ("bad_index", "json", '[{"operation":"keep"}]'),
        ("bad_index", "json", '[{"operation":"keep","entries":' + "9" * 400 + "}]"),
        ("duplicate_operation", "lines", "KEEP 1\nDROP 1"),
        ("duplicate_operation", "lines", "MERGE 1,2: a\nMERGE 3,4: a"),
        ("not_an_operation", "lines", "MERGE 1,2"),
        ("empty_text", "lines", "MERGE 1,2:"),
        ("unknown_operation", "lines", "ADD: a"),
        ("too_many_operations", "lines", "KEEP 1\n" * 5),
    ],
)
def test_merge_out_of_form(reason, form, text):
    parsed = merge(text, form)
    assert (parsed.reason_code, parsed.operations) == (reason, ())


one_line = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=30).filter(
    lambda text: THOUGHT_TAG.search(text) is None
)


@settings(deadline=None)
@given(st.lists(one_line, min_size=1, max_size=3, unique=True), st.booleans(), st.sampled_from(["json", "lines"]))
def test_what_is_written_is_read_back(texts, updates, form):
    operations = [Op("update" if updates and number == 0 else "add", text) for number, text in enumerate(texts)]
    parsed = judge(write_operations(operations, form), form)
    assert parsed.reason_code == "ok" and list(parsed.operations) == operations
