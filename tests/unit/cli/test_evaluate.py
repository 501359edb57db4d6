"""`crl evaluate` refuses what it cannot evaluate; no model is loaded for that."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from crl.run.manifest import Manifest
from crl.run.prunelog import Pruned, note_pruned
from tests.unit.cli.conftest import Outcome
from tests.unit.report.builder import retrieval, write_stage

Crl = Callable[..., Outcome]


def test_weights_that_retention_deleted_are_no_damage(crl: Crl, room: Path) -> None:
    write_stage(room, 1, "plan", [[retrieval(0)]])
    manifest = Manifest.load(room / "rounds/0001/update_actor")
    note_pruned(
        room,
        Pruned(round=1, stage="update_actor", path="checkpoint", sha256s={}, bytes=0, manifest=manifest.check),
        token=1,
    )
    outcome = crl("evaluate", "room", "--round", "1")
    assert outcome.code == 2, outcome.err
    assert "weights of round 1 were deleted by retention" in outcome.err
    assert "one of the rounds 0" in outcome.err, "the base model needs no checkpoint"


def test_a_round_that_is_not_there_is_refused(crl: Crl, room: Path) -> None:
    outcome = crl("evaluate", "room", "--round", "7")
    assert outcome.code == 2 and "round 7" in outcome.err


def test_seeds_that_no_row_can_hold_are_refused(crl: Crl, room: Path) -> None:
    outcome = crl("evaluate", "room", "--seeds", f"{2**63}:8")
    assert outcome.code == 2 and f"--seeds '{2**63}:8'" in outcome.err and "START:COUNT" in outcome.err
