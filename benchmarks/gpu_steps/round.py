"""One whole round of `complementary` with a model of real shape: seconds per stage, memory, disk, and the estimates.

Actor and extractor are adapters on the same model. Its weights are random: the actor is held to legal moves, so it wins
some games and learns; what the extractor writes cannot be used, so its update takes no step.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.estimate import measure
from benchmarks.gpu_steps.common import arguments, tell
from crl.config import Experiment
from crl.config.load import load_experiment
from crl.engine.events import StageDone

ROOT = Path(__file__).resolve().parents[2]
_SHARED = {"lora": {"r": 16}, "deepspeed": {"zero_stage": 1, "micro_batch": 4, "autocast": "bfloat16"}}


def experiment_of(scale: str, model: Path, runs: Path) -> Experiment:
    """64 games of up to 15 turns; in tiny, 8 of up to 6."""
    full = scale == "full"
    role = {"model": str(model), "dtype": "bfloat16", "context": 2048, **_SHARED}
    lake = {"size_min": 4, "size_max": 5, "max_turns": 15} if full else {"size_min": 3, "size_max": 3, "max_turns": 6}
    return load_experiment(
        ROOT / "conf/tiny.yaml",
        {
            "name": "gpu-round",
            "method.threads": 8 if full else 1,
            "method.families.0.groups": 8 if full else 2,
            "method.families.0.environment": {"kind": "frozenlake", "frozen_probability": 0.95, **lake},
            "method.families.0.evaluation_seeds.count": 1,
            "method.roles.actor": {**role, "sampling": {"max_new_tokens": 4, "constrain": "actions"}},
            "method.roles.extractor": {**role, "sampling": {"max_new_tokens": 48 if full else 8}},
            "method.rollout.group_size": 8 if full else 4,
            "method.rollout.wave_groups": 8,
            "method.recipe.warm_start": None,
            "method.evaluation.every": 0,
            "runtime.runs": str(runs),
        },
    )


def main() -> None:
    """Run it; every stage is told as it ends."""
    asked, taken = arguments(__doc__), list[float]()

    def heard(event: StageDone) -> None:
        if event.round == 1:
            taken.append(event.seconds)
            tell(**{event.stage: round(event.seconds, 2)})

    for each in measure(experiment_of(asked.scale, asked.model, asked.folder), asked.folder, heard):
        tell(**{f"whole round, {each.name} GB": round(each.found / 1e9, 3)})
        tell(**{f"whole round, {each.name} GB, estimated": round(each.estimated / 1e9, 3)})
    tell(**{"whole round, seconds": round(sum(taken), 3)})


if __name__ == "__main__":
    main()
