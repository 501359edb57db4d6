"""One query says where an experience comes from and what became of it."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from crl.bank.changes import Change
from crl.errors import BadInput
from crl.records import BankSnapshot
from crl.report.bank import snapshot, why, why_tree
from crl.report.views import query
from tests.unit.report.builder import (
    NEW,
    OLD,
    bank_entry,
    bank_rows,
    build_run,
    digest,
    event,
    operation,
    write_stage,
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_run(tmp_path_factory.mktemp("runs") / "run")


def test_one_query_answers_every_part_of_the_question(run: Path) -> None:
    names, rows = query(run, "SELECT * FROM lineage WHERE entry_id = 'e1'")
    first, second, third = (dict(zip(names, row, strict=True)) for row in rows)
    assert first["source_episodes"] == [
        {"episode_id": "r0001-room-g0000-m000", "success": True},
        {"episode_id": "r0001-room-g0000-m001", "success": False},
    ]
    assert (first["text"], first["prompt"]) == (OLD, "What was learned?")
    assert (first["extractor_checkpoint"], first["extractor_updates"]) == ("tiny", 0)
    assert [use["used_in"] for use in (first, second)] == ["r0002-room-g0000-m000", "r0002-room-g0000-m001"]
    assert [use["used_success"] for use in (first, second)] == [True, False]
    assert [use["guided_minus_free"] for use in (first, second)] == [2.0, 0.0]
    # The second version was written by the extractor trained in round 1, and has not been used.
    assert (third["version"], third["text"], third["used_in"]) == (2, NEW, None)
    assert third["extractor_checkpoint"] == "rounds/0001/update_extractor/checkpoint"


def test_candidates_that_were_not_chosen_are_no_uses(run: Path) -> None:
    assert {row["used_in"] for row in why(run, "e1")} == {"r0002-room-g0000-m000", "r0002-room-g0000-m001", None}


def test_the_tree_shows_parents_of_a_merge(tmp_path: Path) -> None:
    path = build_run(tmp_path / "run")
    merged = operation(3, "merge", "Both.", ["e1"])
    before = BankSnapshot(round=2, entries=1, changed=1, removed=0, base_round=0, changes_since_base=2, digest="0")
    changes = [
        Change(bank_entry(2, NEW, 2), None),
        Change(None, dataclasses.replace(bank_entry(3, "Both.", 1), entry_id="e2")),
    ]
    write_stage(path, 3, "merge", [[dataclasses.replace(merged, entry_id="e2", episode_ids=[])]])
    merge = dataclasses.replace(event(3, "merge", None, "Both."), entry_id="e2", parents=["e1"])
    write_stage(path, 3, "consolidate", [*bank_rows(3, before, *changes), [merge]])
    out = Console(file=io.StringIO(), width=200)
    out.print(why_tree(path, "e2"))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "from e1" in text and "What was learned?" in text and "r0001-room-g0000-m000 (won)" in text
    out = Console(file=io.StringIO(), width=200)
    out.print(why_tree(path, "e1"))
    assert "not in the bank after round 3" in out.file.getvalue()  # type: ignore[attr-defined]


def test_model_text_is_never_markup(tmp_path: Path) -> None:
    path = build_run(tmp_path / "run")
    text = "[red]go[/red] [/] :smile:"
    write_stage(path, 3, "distill", [[dataclasses.replace(operation(3, "add", text, []), entry_id="e3")]])
    write_stage(path, 3, "consolidate", [[dataclasses.replace(event(3, "add", None, text), entry_id="e3")]])
    out = Console(file=io.StringIO(), width=200)
    out.print(why_tree(path, "e3"))
    assert text in out.file.getvalue()  # type: ignore[attr-defined]


def test_snapshots_by_round_and_family(run: Path) -> None:
    assert snapshot(run).round == 2
    assert [entry.text for entry in snapshot(run).entries] == [NEW]
    assert [entry.text for entry in snapshot(run, 1).entries] == [OLD]
    assert snapshot(run, 0).entries == []
    with pytest.raises(BadInput, match="round 9"):
        snapshot(run, 9)
    with pytest.raises(BadInput, match="family"):
        snapshot(run, None, "maze")


def test_an_unknown_entry_names_close_ones(run: Path) -> None:
    with pytest.raises(BadInput) as caught:
        why(run, "e11")
    assert "e1" in str(caught.value.expected)
    assert digest(OLD) != digest(NEW)
