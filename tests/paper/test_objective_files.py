"""The files of `conf/objectives`: what each paper defines, and that a run with each survives a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.audit.verify import verify
from crl.config.load import load_experiment
from crl.records import Metric, rows_of
from crl.run.directory import RunDirectory
from tests.faults.killing import killed_run
from tests.tiny_run import ROUNDS, crl, digests, leftovers, train

FILES = Path(__file__).parents[2] / "conf/objectives"
DEFINED: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo", "epsilon": 0.2, "beta": 0.04, "scale_rewards": "group"},
    "dapo": {"loss_type": "dapo", "epsilon": 0.2, "epsilon_high": 0.28, "beta": 0.0, "scale_rewards": "group"},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4, "loss_type": "grpo"},
    "dr_grpo": {"loss_type": "dr_grpo", "epsilon": 0.2, "beta": 0.0, "scale_rewards": "none"},
    "cispo": {"loss_type": "cispo", "epsilon": 1.0, "beta": 0.0, "scale_rewards": "group"},
}
"""Section 2 or 3 of each paper; CISPO's has no lower bound and does not say its upper one."""


@pytest.mark.parametrize("name", DEFINED)
def test_a_file_has_the_settings_of_its_paper(name: str) -> None:
    method = load_experiment(FILES / f"{name}.yaml").method
    objective: Any = method.recipe.actor_objective  # type: ignore[attr-defined]
    assert {key: getattr(objective, key) for key in DEFINED[name]} == DEFINED[name]
    assert objective.advantage == "pooled", "one baseline of a group, as in the papers"
    assert (objective.soft_punish_cache is not None) is (name == "dapo")
    assert (method.rollout.dynamic_sampling is not None) is (name == "dapo")
    assert sorted(DEFINED) == sorted(path.stem for path in FILES.glob("*.yaml"))


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFINED)
def test_a_run_that_is_killed_while_it_learns_is_the_undisturbed_one(name: str, tmp_path: Path) -> None:
    """tiny with both roles and the objective of the file; killed while the actor learns, and while it plays on."""
    written = yaml.safe_load((FILES / f"{name}.yaml").read_text(encoding="utf-8"))["method"]
    changes = {
        "method__recipe__actor_objective": yaml.safe_dump(
            {**written["recipe"]["actor_objective"], "advantage": "subgroup"}, default_flow_style=True, width=1000
        ).strip(),
        "method__roles__actor__optimizer__num_iterations": 2,
    }
    crl(tmp_path / "undisturbed", *train(ROUNDS, **changes))
    reference = tmp_path / "undisturbed" / "tiny"
    run = RunDirectory.open(reference)
    rounds = [
        {row.name: row.value for row in rows_of(Metric, run.read(number, "update_actor", Metric))}
        for number in range(1, ROUNDS + 1)
    ]
    learned = [metrics for metrics in rounds if metrics["stepped"]]
    assert learned, "some round has games of one group that end otherwise"
    for metrics in learned:
        assert metrics["stepped"] == 2 and metrics["entropy"] > 0
        assert ("reference_kl" in metrics) is (name == "grpo")
    with killed_run(tmp_path / "killed", reference, rounds=ROUNDS, seed=11, **changes) as killed:
        for key, whom in (("0001/update_actor", "engine"), ("0002/collect", "both")):
            if not killed.alive:
                killed.start()
            killed.kill_in(key, whom=whom, manner="working")
        killed.finish()
    assert digests(killed.path) == killed.expected
    assert leftovers(killed.path) == [] and verify(killed.path) == []
