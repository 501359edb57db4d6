"""One query says where an experience comes from and what became of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from crl.report.views import query
from tests.unit.report.builder import (
    NEW,
    OLD,
    build_run,
    credit,
    digest,
    episode,
    retrieval,
    share_weights,
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


def test_the_writer_is_found_where_roles_share_weights(tmp_path: Path) -> None:
    shared = build_run(tmp_path / "run")
    share_weights(shared)
    found = "SELECT version, extractor_checkpoint, extractor_updates FROM lineage WHERE used_in IS DISTINCT FROM $other"
    _, rows = query(shared, found, {"other": "r0002-room-g0000-m001"})
    assert rows == [(1, "tiny", 0), (2, "rounds/0001/update_extractor/checkpoint", 1)]


def test_a_memory_that_was_read_for_an_attempt_was_used(tmp_path: Path) -> None:
    """As ERL has it: what guides the attempt is the reflection that was written from the memory."""
    run = build_run(tmp_path / "run")
    for member in (4, 5):
        attempt = dataclasses.replace(
            episode(2, member, guided=True, success=True), entry_ids=["e9"], content_digests=[digest("new")]
        )
        write_stage(run, 2, f"retry_{member}", [[attempt], [retrieval(member)]])
    earned = dataclasses.replace(credit(4, 1.0), free_mean=None, guided_minus_free=None)
    write_stage(run, 2, "credit_memory", [[earned]])  # a malformed reflection guides none: nothing is credited
    _, rows = query(run, "SELECT used_in, outcome FROM lineage WHERE version = 1 ORDER BY used_in")
    assert [(name[-4:], outcome) for name, outcome in rows] == [("m000", 1.0), ("m001", -1.0), ("m004", 1.0)]


def test_candidates_that_were_not_chosen_are_no_uses(run: Path) -> None:
    _, rows = query(run, "SELECT used_in FROM lineage WHERE entry_id = 'e1'")
    assert {used_in for (used_in,) in rows} == {"r0002-room-g0000-m000", "r0002-room-g0000-m001", None}
