"""Which engines share a GPU, as the estimate and the servers count them: against what the engines are given."""

from __future__ import annotations

from typing import Any

import pytest

from crl.config.load import load_experiment
from crl.preflight.placement import engines_by_gpu
from tests import tiny_run

TWO_TRACKS = {
    "method.overlap": True,
    "method.evaluation.every": 0,
    "method.roles.actor.deepspeed.ranks": 2,
    "method.roles.extractor.deepspeed.ranks": 2,
    "runtime.oversubscribe": True,
}


def placed(changes: dict[str, Any], gpus: int) -> list[list[tuple[str, str]]]:
    """For each GPU the engines there, as (what they sample, what they train)."""
    made = load_experiment(tiny_run.ROOT / "conf/tiny.yaml", changes)
    return [
        sorted(("+".join(sorted(each.sampled)), "+".join(sorted(each.trained))) for each in engines)
        for engines in engines_by_gpu(made, gpus)
    ]


@pytest.mark.parametrize(
    ("shards", "gpus", "expected"),
    [
        # Ranks of the actor on 0 and 1, of the extractor on 1 and 2: those of the first track are in the second's way.
        (1, 4, [[("actor", "actor")], [("", "actor"), ("extractor", "extractor")], [("", "extractor")]]),
        # A shard gives its models up before the ranks of its own track start: it is the larger of both.
        (2, 4, [[("actor", "actor")]] * 2 + [[("extractor", "extractor")]] * 2),
        (2, 2, [[("actor", "actor"), ("extractor", "extractor")]] * 2),
        (1, 0, [[("actor", "actor"), ("extractor", "extractor")]]),
    ],
)
def test_ranks_are_on_every_gpu_that_they_use(shards: int, gpus: int, expected: list[Any]) -> None:
    assert placed({**TWO_TRACKS, "runtime.shards": shards}, gpus) == expected


def test_ranks_elsewhere_take_nothing_here() -> None:
    nodes = {"hostfile": "/nowhere", "endpoint": "gpu-1:29500"}
    found = placed({**TWO_TRACKS, "runtime.nodes": nodes}, 4)
    assert found == [[("actor", "actor")], [("extractor", "extractor")]]
