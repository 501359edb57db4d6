"""Rewards by a judge behind an endpoint: an actor learns from one that tells the truth in nine of ten cases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crl.audit.verify import require_intact
from crl.config.load import parse_experiment
from crl.records import Episode, Metric, Verdict
from tests.fake_vllm import serving
from tests.learning.harness import rows, share, train
from tests.learning.miniature import write_miniature

pytestmark = pytest.mark.slow

ROUNDS, TRUTHFUL = 14, 0.9
EXPERIMENT = """
name: judged
method:
  seed: {seed}
  families:
    - name: shrine
      environment: {{kind: shrines, steps: 2, choices: 3, things: 6, max_turns: 3, held_out_from: 1000000}}
      groups: 8
      evaluation_seeds: {{start: 1000000, count: 2}}
      reward: {{judge: rubric.md}}
  roles:
    actor:
      model: {model}
      sampling: {{max_new_tokens: 3, constrain: actions}}
      optimizer: {{learning_rate: 3.0e-3}}
      deepspeed: {{micro_batch: 32}}
    judge: {{model: endpoint:nine/of/ten, engine: openai, context: 20000, sampling: {{max_new_tokens: 4}}}}
  rollout: {{group_size: 16, wave_groups: 8, action_format: word}}
  evaluation: {{every: 0}}
  recipe: {{kind: baseline}}
  threads: 1
  prompts:
    actor: {{system: offer, first: "{{experience}}{{observation}}", following: "{{feedback}}{{observation}}"}}
runtime: {{servers: {{judge: {{address: {address}}}}}}}
"""
THINGS = ("bell", "coin", "book", "ring", "cup", "flag")


def nine_of_ten(body: Any) -> tuple[int, Any]:
    """The truth about the game that is shown, or in one of ten cases its opposite."""
    won = "opens" in body["messages"][-1]["content"].split("End: ")[-1]
    lies = np.random.default_rng(body["seed"]).random() >= TRUTHFUL
    said = {"message": {"content": "10" if won != lies else "0"}, "finish_reason": "stop"}
    return 200, {"choices": [said]}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_shrines_rise_by_a_judge_that_lies_in_one_of_ten_cases(
    tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    write_miniature(model, [*THINGS, *(f" {thing}" for thing in THINGS), "offer"], side=2, seed=seed, spread=0.25)
    (tmp_path / "rubric.md").write_text("A good player opens the shrine.\n")
    with serving() as fake:
        fake.faults["/v1/chat/completions"] = nine_of_ten
        text = EXPERIMENT.format(seed=seed, model=model, address=f"{fake.address}/v1")
        experiment = parse_experiment(yaml.safe_load(text), base=tmp_path, where="test")
        # The harness has no driver, which would note it.
        monkeypatch.setattr("crl.engine.services.last_runtime", lambda path: experiment.runtime)
        run = train(experiment, tmp_path / "runs", ROUNDS)
    require_intact(run.path)
    true, paid = [], []
    for number in range(1, ROUNDS + 1):
        episodes = rows(run, Episode, "collect", [number])
        parts = [dict(zip(each.reward_names, each.reward_values, strict=True)) for each in episodes]
        true.append(share([each["environment"] == 1 for each in parts]))
        paid.append(share([each.success for each in episodes]))
    print(f"true success by round, seed {seed}: {[round(value, 2) for value in true]}")
    verdicts = rows(run, Verdict, "collect", range(1, ROUNDS + 1))
    first = [row for row in verdicts if row.reading == 0]
    assert len(first) == ROUNDS * 8 * 16 and {row.model for row in verdicts} == {"endpoint:nine/of/ten"}
    assert np.mean(true[-3:]) > np.mean(true[:2]) + 0.3 and np.mean(true[-3:]) > 0.6
    assert abs(np.mean(paid) - np.mean([0.9 * each + 0.1 * (1 - each) for each in true])) < 0.05
    [agreement] = [row for row in rows(run, Metric, "health", [ROUNDS]) if row.name == "judge_agreement"]
    assert 0.7 < agreement.value < 0.95 and agreement.alarm is None
