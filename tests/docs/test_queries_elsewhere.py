"""Queries of docs/queries.md on runs that the made-up one is not like."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from crl.report.views import query
from tests.docs.test_queries import QUERIES
from tests.unit.report.builder import build_run, episode, share_weights, write_stage


def test_who_wrote_what_is_useful_where_roles_share_weights(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")
    share_weights(run)
    assert query(run, QUERIES[12])[1] == [(0, 1, 2, 0.5, 1.0)]


def test_only_groups_of_both_kinds_say_whether_an_experience_helps(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")  # round 1 has free episodes only: one of four is won
    unpaired = [episode(3, 0, guided=True, success=True)]
    broken = {"success": False, "stop_reason": "error", "error": "prompt_too_long"}
    played = [
        dataclasses.replace(episode(3, member, guided=member < 4, success=member in (1, 2)), group=1)
        for member in range(1, 6)
    ]
    played[2] = dataclasses.replace(played[2], **broken)
    write_stage(run, 3, "collect", [unpaired + played])
    [(family, guided, free, difference, _)] = query(run, QUERIES[9])[1]
    assert (family, guided, free, difference) == ("room", 3 / 4, 0.0, 3 / 4), "both of round 3, one of two of round 2"


def test_what_was_won_alone_is_counted_by_groups_with_the_newest_text(tmp_path: Path) -> None:
    run = build_run(tmp_path / "run")  # a group of round 2 is won only with e1, which says OLD there
    newest = "A text that is first in the alphabet."
    won = [
        dataclasses.replace(episode(3, member, guided=True, success=True), experiences=[newest]) for member in (0, 1)
    ]
    write_stage(run, 3, "collect", [[*won, episode(3, 2, guided=False, success=False)]])
    assert query(run, QUERIES[15])[1] == [("e1", 2, 2, 3, newest)]
