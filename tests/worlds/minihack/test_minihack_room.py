"""The study of SmolLM2 in a NetHack room at a size for two processor cores: two arms, one seed, two rounds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.audit.verify import verify
from crl.records import BankSnapshot, Evaluation, Generation, Metric, Sample, Weights
from crl.run.directory import RunDirectory
from tests.learning.harness import rows
from tests.tiny_run import ROOT, crl

pytestmark = pytest.mark.slow

STUDY = ROOT / "conf/study/minihack_room.yaml"
ARMS, SEED, ROUNDS = ("complementary", "baseline"), 101, 2
GROUPS, MEMBERS, HELD_OUT = 2, 8, 2
CUT: dict[str, Any] = {
    "method.families.0.groups": GROUPS,
    # Rooms whose stairs are beside the agent, left before most games are won: some are, some are not.
    "method.families.0.train_seeds": {"start": 77, "count": GROUPS},
    "method.families.0.environment.max_turns": 3,
    "method.families.0.evaluation_seeds.count": HELD_OUT,
    "method.rollout.group_size": MEMBERS,
    "method.rollout.wave_groups": GROUPS,
    # Wherever it runs: in bfloat16, on a CPU that computes it, other games are won.
    **{
        f"method.roles.{role}.{key}": value
        for role in ("actor", "extractor")
        for key, value in (("dtype", "float32"), ("deepspeed.autocast", "none"))
    },
    # The eight guided games of round 2 reward as many entries, some +1 and some -1.
    "method.recipe.extractor_objective.batch": 7,
    "method.roles.extractor.context": 512,
    "method.roles.actor.deepspeed.micro_batch": 2,
    "method.roles.extractor.deepspeed.micro_batch": 2,
    "method.recipe.warm_start.extractor_episodes": 12,
    "method.recipe.warm_up_rounds": 0,
    "method.evaluation.every": ROUNDS,
    "method.threads": 1,
}


def test_two_rounds_of_two_arms(tmp_path: Path) -> None:
    study = yaml.safe_load(STUDY.read_text(encoding="utf-8"))
    arms = {name: {**study["arms"][name], "set": {**study["arms"][name].get("set", {}), **CUT}} for name in ARMS}
    study |= {
        "base": str((STUDY.parent / study["base"]).resolve()), "rounds": ROUNDS, "seeds": [SEED], "arms": arms,
        "compare_with": "baseline",
    }  # fmt: skip
    file, root = tmp_path / "study.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(study), encoding="utf-8")
    told = crl(root, "compare", file, "--jobs", "2").stdout
    runs = {name: RunDirectory.open(root / study["name"] / f"{study['name']}-{name}-s{SEED}") for name in ARMS}

    for name, run in runs.items():
        assert verify(run.path) == []
        assert run.method.seed == SEED and run.method.recipe.kind == name
        assert_trained(run, "actor")
        assert {row.condition for row in rows(run, Evaluation, "evaluate", [0])} == {"random", "without_bank"}
    complementary = runs["complementary"]
    assert_trained(complementary, "extractor")
    assert rows(complementary, BankSnapshot, "consolidate", [ROUNDS])[0].entries > 0
    newest = rows(complementary, Evaluation, "evaluate", [ROUNDS])
    assert {row.condition for row in newest} == {"without_bank", "with_bank"}
    assert not runs["baseline"].is_complete(1, "distill")
    # Until there is a bank, the same model plays the same tasks with the same random streams.
    first = [[row.token_ids for row in rows(run, Generation, "collect", [1])] for run in runs.values()]
    assert first[0] == first[1]

    found = json.loads((root / study["name"] / "study.json").read_text(encoding="utf-8"))
    for arm in found["arms"]:
        assert arm["finished"] == [SEED] and arm["episodes"][str(SEED)] == ROUNDS * GROUPS * MEMBERS
        evaluated = rows(runs[arm["arm"]], Evaluation, "evaluate", [ROUNDS])
        won = [row.success for row in evaluated if row.condition == "without_bank"]
        assert len(won) == HELD_OUT and arm["without_bank"]["final"][str(SEED)] == sum(won) / HELD_OUT
    for title in ("Complementary RL", "Baseline"):
        assert f"| {title} |" in told
    assert (root / study["name"] / "study.html").is_file()


def assert_trained(run: RunDirectory, role: str) -> None:
    """Samples of the role were given to its engine, which took every step that an advantage asked for."""
    updated = []
    for number in range(1, ROUNDS + 1):
        samples = [row for row in rows(run, Sample, "credit", [number]) if row.role == role]
        metrics = {row.name: row.value for row in rows(run, Metric, f"update_{role}", [number])}
        assert metrics["samples"] == len(samples)
        assert bool(metrics.get("stepped")) == any(row.advantage != 0 for row in samples)
        updated.append(bool(metrics.get("stepped")))
        (weights,) = rows(run, Weights, f"update_{role}", [number])
        assert weights.updates == sum(updated)
    assert any(updated), f"the {role} was never trained"
