"""Several passes over a round's samples: optimizer steps on the same batches in the same order, and their metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from crl.config import OptimizerConfig, RoleConfig
from crl.records import Metric, Weights
from crl.rounds.weights import over_passes
from tests.unit.recipes.played import Played, Services, Trainer, experiment

FEW = {"method__families__0__evaluation_seeds__count": 2, "method__families__0__groups": 2}


class SteppingTrainer(Trainer):
    """Every step is taken; what it says of a step is the step's number."""

    def update(self, samples: Any, objective: Any, **more: Any) -> dict[str, float]:
        super().update(samples, objective, **more)
        number = float(len(self.batches))
        return {
            "samples": float(len(samples)), "tokens": 10.0, "nll_tokens": 3.0, "stepped": 1.0, "loss": number,
            "ratio_mean": number, "ratio_max": number, "logprob_mismatch": number, "mismatch_kl": number,
        }  # fmt: skip

    def save(self, directory: Path) -> None:
        directory.mkdir()
        (directory / "model").write_text("moved")


def played(root: Path, passes: int, mini_batches: int = 1) -> tuple[Played, Services]:
    optimizer = "method__roles__actor__optimizer__num_"
    made = experiment(**{optimizer + "iterations": passes, optimizer + "mini_batches": mini_batches, **FEW})
    services = Services(made)
    services.trainers = {"actor": SteppingTrainer(), "extractor": SteppingTrainer()}
    return Played(root, made, 1, services), services


@pytest.mark.slow
def test_each_pass_is_a_step_on_the_same_samples_and_the_weights_have_had_as_many_updates(tmp_path: Path) -> None:
    once, single = played(tmp_path / "one", 1)
    thrice, several = played(tmp_path / "three", 3)
    batches = single.trainers["actor"].batches
    assert len(batches) == 1 and batches[0]
    assert several.trainers["actor"].batches == batches * 3
    assert several.trainers["extractor"].batches == single.trainers["extractor"].batches, "another role's own affair"
    [one], [three] = (each.rows(Weights, "update_actor", 1) for each in (once, thrice))
    assert (one.updates, three.updates) == (1, 3)


def test_a_batch_is_dealt_into_mini_batches_the_same_in_every_pass(tmp_path: Path) -> None:
    _, single = played(tmp_path / "one", 1)
    twice, several = played(tmp_path / "two", 2, mini_batches=3)
    _, again = played(tmp_path / "again", 2, mini_batches=3)
    [whole], parts = single.trainers["actor"].batches, several.trainers["actor"].batches
    assert len(parts) == 6 and parts[:3] == parts[3:] == again.trainers["actor"].batches[:3]
    assert max(map(len, parts)) - min(map(len, parts)) <= len({each.objective for each in whole})
    weights = {each.sample_id: each.weight * (3 if each.objective == "grpo" else 1) for each in whole}
    assert {each.sample_id: each.weight for part in parts[:3] for each in part} == pytest.approx(weights)
    assert sum(map(len, parts[:3])) == len(whole)
    [after] = twice.rows(Weights, "update_actor", 1)
    assert after.updates == 6


@pytest.mark.slow
def test_there_are_no_more_mini_batches_than_samples(tmp_path: Path) -> None:
    _, single = played(tmp_path / "one", 1)
    _, several = played(tmp_path / "many", 1, mini_batches=1000)
    assert [len(part) for part in several.trainers["actor"].batches] == [1] * len(single.trainers["actor"].batches[0])


def test_samples_are_told_once_and_steps_together() -> None:
    trainer = SteppingTrainer()
    steps = [trainer.update([None] * 4, None) for _ in range(6)]
    assert over_passes(steps, 2) == {
        "samples": 8.0, "tokens": 20.0, "nll_tokens": 6.0, "logprob_mismatch": 1.0, "mismatch_kl": 1.0,
        "stepped": 6.0, "loss": 3.5, "ratio_mean": 3.5, "ratio_max": 6.0,
    }  # fmt: skip


def test_how_trainer_and_sampler_agree_is_said_before_anything_moved_or_not_at_all() -> None:
    idle = {"samples": 2.0, "stepped": 0.0}
    fresh, old = (
        {"samples": 2.0, "tokens": 3.0, "stepped": 1.0, "loss": 0.5, **more} for more in ({"mismatch_kl": 0.1}, {})
    )
    assert over_passes([idle, fresh, {**fresh, "mismatch_kl": 9.0}], 3)["mismatch_kl"] == 0.1
    assert "mismatch_kl" not in over_passes([old, fresh], 2), "the second batch is read after a step"


def test_one_pass_is_not_written_down_and_none_is_refused() -> None:
    assert "num_iterations" not in RoleConfig().model_dump()["optimizer"]
    assert RoleConfig(optimizer=OptimizerConfig(num_iterations=4)).model_dump()["optimizer"]["num_iterations"] == 4
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        OptimizerConfig(num_iterations=0)


def test_a_learning_rate_of_nothing_is_an_alarm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    updated = SteppingTrainer.update
    monkeypatch.setattr(
        SteppingTrainer, "update", lambda *rest, **more: {**updated(*rest, **more), "learning_rate": 0.0}
    )
    done, _ = played(tmp_path, 1)
    alarms = {metric.name: metric.alarm for metric in done.rows(Metric, "update_actor", 1) if metric.alarm}
    assert list(alarms) == ["learning_rate"] and "lr_scheduler_steps" in (alarms["learning_rate"] or "")
