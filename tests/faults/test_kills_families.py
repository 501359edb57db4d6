"""Small models of three families, with their chat templates, call tools and think for two rounds; killed and resumed,
the run is the one that was never disturbed."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.audit.verify import verify
from crl.records import Turn, rows_of
from crl.run.directory import RunDirectory
from tests.doors import FAMILIES, write_family
from tests.faults.killing import killed_run
from tests.tiny_run import ROUNDS, crl, digests, leftovers, train

pytestmark = pytest.mark.slow

CHANGES = {
    "method__families__0": "{name: doors, environment: {kind: 'tests.doors:Doors', max_turns: 4}, groups: 2, "
    "evaluation_seeds: {start: 1000000, count: 2}}",
    "method__prompts__actor__system": "'Act: {actions}.'",
    "method__roles__actor__context": 1024,
    "method__roles__actor__sampling__max_new_tokens": 64,
    "method__roles__actor__sampling__temperature": 0.5,
    "method__recipe__warm_start__learning_rate": 0.01,
    "method__rollout__group_size": 2,
}


@pytest.mark.parametrize("kind", FAMILIES)
def test_tools_and_thoughts_killed_and_resumed(kind: str, tmp_path: Path) -> None:
    model = write_family(kind, tmp_path / "model")
    changes = {**CHANGES, "method__roles__actor__model": str(model)}
    crl(tmp_path / "undisturbed", *train(ROUNDS, **changes))
    reference = tmp_path / "undisturbed" / "tiny"
    turns = rows_of(Turn, RunDirectory.open(reference).read(2, "collect", Turn))
    assert any(turn.action is not None for turn in turns), "it calls tools"
    assert any("<think>" in turn.output for turn in turns), "it thinks"
    with killed_run(tmp_path / "killed", reference, rounds=ROUNDS, seed=7, **changes) as run:
        for key, whom in (("0001/collect", "engine"), ("0001/update_actor", "both"), ("0002/collect", "flow")):
            if not run.alive:
                run.start()
            run.kill_in(key, whom=whom, manner="working")
        run.finish()
        assert len(run.kills) >= 2, "a stage may be over before its moment comes"
    assert digests(run.path) == run.expected
    assert leftovers(run.path) == [] and verify(run.path) == []
