"""Several processes give the step of one: acceptance of ZeRO-2 and ZeRO-3 on two ranks, fp32, plain SGD."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from crl.records import Sample
from crl.run.guardian import STORE_VARIABLE, on_loopback
from tests.processes import PATIENCE_SECONDS

pytestmark = pytest.mark.slow

WORKER = """
import os, pickle, sys
from pathlib import Path
from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
from crl.learn import trainer as trainers
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
base, samples, output, stage, ranks = sys.argv[1:]
samples = pickle.loads(Path(samples).read_bytes())
role = RoleConfig(
    model="miniature",
    optimizer=OptimizerConfig(kind="sgd", learning_rate=0.1, max_grad_norm=0),
    deepspeed=DeepSpeedConfig(zero_stage=int(stage), ranks=int(ranks), micro_batch=2),
)
adam = role.model_copy(update={"optimizer": OptimizerConfig(learning_rate=1e-2)})
everything, loaded, load = [], [], trainers.load_trainable

def noted(*given, **more):
    model = load(*given, **more)
    loaded.append(sum(each.numel() for each in model.parameters()))
    return model

trainers.load_trainable = noted
for case, chosen in enumerate((samples, samples[:1])):  # with one sample, a second rank has only a dummy
    found = {}
    trainer = Trainer(role, model_path=Path(base), checkpoint=None, threads=1)
    before = trainer.weights()
    found["logprobs"] = trainer.read(chosen, likeliest=3)

    def weigh(norms):
        found["norms"] = norms
        return {}

    terms = objectives(ActorObjective())
    found["metrics"] = trainer.update(chosen, terms, factors=weigh, inspect=lambda g: found.update(gradients=g))
    after = trainer.weights()
    trainer.dispose()
    found["update"] = {name: after[name] - before[name] for name in before}
    trainer = Trainer(adam, model_path=Path(base), checkpoint=None, threads=1)
    trainer.update(chosen, objectives(ActorObjective()))
    directory = Path(output) / f"checkpoint{case}"
    trainer.save(directory)
    found["told"] = trainer.from_first(f"rank {trainer._ranks.rank}"), trainer.rest()
    trainer.wake()
    found["straight"] = (trainer.update(chosen, objectives(ActorObjective())), trainer.weights())
    trainer.dispose()
    trainer = Trainer(adam, model_path=Path(base), checkpoint=directory, threads=1)
    found["resumed"] = (trainer.update(chosen, objectives(ActorObjective())), trainer.weights())
    trainer.dispose()
    everything.append(found)
rank = os.environ.get("RANK", "0")
everything[0]["loaded"] = loaded
(Path(output) / f"rank{rank}.pickle").write_bytes(pickle.dumps(everything))
"""


def run(base: Path, samples: list[Sample], directory: Path, stage: int, ranks: int) -> list[list[dict[str, Any]]]:
    """The worker's findings, a list of cases a rank, from `ranks` processes on this machine."""
    directory.mkdir()
    (directory / "worker.py").write_text(WORKER)
    (directory / "samples.pickle").write_bytes(pickle.dumps(samples))
    launcher = []
    if ranks > 1:
        launcher = ["-m", "crl.engine.launch", "ranks", "--ranks", str(ranks), "--"]
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    environment = {key: value for key, value in os.environ.items() if key not in names}
    environment |= {
        "PYTHONPATH": str(Path(__file__).parents[3]),
        "OMP_NUM_THREADS": "1",
        STORE_VARIABLE: str(directory / "store"),
    }
    environment |= on_loopback()
    arguments = ["worker.py", str(base), "samples.pickle", ".", str(stage), str(ranks)]
    done = subprocess.run(
        [sys.executable, *launcher, *arguments],
        cwd=directory, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [pickle.loads((directory / f"rank{rank}.pickle").read_bytes()) for rank in range(ranks)]


def relative_difference(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    a = torch.cat([one[name].flatten().double() for name in one])
    b = torch.cat([other[name].flatten().double() for name in one])
    assert a.norm() > 0
    return float((a - b).norm() / a.norm())


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    rng = np.random.default_rng(0)
    made = []
    for index in range(5):
        mask = [0, 0, 0] + [int(value) for value in rng.integers(0, 2, size=int(rng.integers(5, 15)))] + [1]
        made.append(
            Sample(
                sample_id=f"s{index}", round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=f"g{index}", reward=0.0, advantage=float(rng.normal()), weight=0.2, temperature=1.1,
                token_ids=[int(token) for token in rng.integers(0, 64, len(mask))], loss_mask=mask,
                logprobs=[float(-4.2 + 0.5 * rng.normal()) * value for value in mask],
            )
        )  # fmt: skip
    return made


@pytest.fixture(scope="module")
def alone(base_model: Path, samples: list[Sample], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What one process does without ZeRO."""
    return run(base_model, samples, tmp_path_factory.mktemp("alone") / "one", 0, 1)[0]


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_two_ranks_make_the_step_of_one(
    base_model: Path, samples: list[Sample], alone: list[dict[str, Any]], tmp_path: Path, stage: int
) -> None:
    for rank, cases in enumerate(run(base_model, samples, tmp_path / "two", stage, 2)):
        for expected, found in zip(alone, cases, strict=True):
            assert relative_difference(expected["gradients"], found["gradients"]) < 1e-4, rank
            assert relative_difference(expected["update"], found["update"]) < 1e-4, rank
            assert found["metrics"]["update_norm"] > 0
            assert found["logprobs"].keys() == expected["logprobs"].keys()
            for name, reading in expected["logprobs"].items():
                assert found["logprobs"][name].top_ids == reading.top_ids
                for mine, other in zip(found["logprobs"][name].top_logprobs, reading.top_logprobs, strict=True):
                    assert mine == pytest.approx(other, abs=1e-5)
                assert found["logprobs"][name].logprobs == pytest.approx(reading.logprobs, abs=1e-5)
            assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4)
            for name, value in expected["metrics"].items():
                assert found["metrics"][name] == pytest.approx(value, rel=1e-4), name
            assert found["told"] == ("rank 0", stage in (1, 2)), "which update they reached, and whether they rested"
            assert found["straight"][0] == found["resumed"][0]
            for name, value in found["straight"][1].items():
                assert torch.equal(value, found["resumed"][1][name]), f"{name}: resume is not bit-exact"
    files = {path.name for path in (tmp_path / "two" / "checkpoint0" / "deepspeed").iterdir()}
    shards = {"optimizer-rank00000.safetensors"} | ({"optimizer-rank00001.safetensors"} if stage else set())
    assert files == {"engine.json"} | shards


def test_weights_that_are_divided_while_they_load_are_those_that_load_whole(
    base_model: Path, samples: list[Sample], tmp_path: Path
) -> None:
    """A file of bfloat16 numbers is divided, one of the same numbers in float32 is mapped: equal bits everywhere."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base_model, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "narrow")
    model.float().save_pretrained(tmp_path / "wide")
    narrow, wide = (run(tmp_path / name, samples, tmp_path / f"of {name}", 3, 2) for name in ("narrow", "wide"))
    for divided, whole in zip(narrow, wide, strict=True):
        resumed = 2  # the checkpoint is in float32
        assert [count > 0 for count in divided[0].pop("loaded")] == [False, False, True] * resumed
        assert all(count > 0 for count in whole[0].pop("loaded"))
        for one, other in zip(divided, whole, strict=True):
            assert one["metrics"] == other["metrics"] and one["straight"][0] == other["straight"][0]
            for key in ("gradients", "update"):
                assert all(torch.equal(value, other[key][name]) for name, value in one[key].items()), key
            assert all(torch.equal(value, other["straight"][1][name]) for name, value in one["straight"][1].items())
    first, second = (tmp_path / f"of {name}" / "checkpoint0" / "model.safetensors" for name in ("narrow", "wide"))
    assert first.read_bytes() == second.read_bytes()
