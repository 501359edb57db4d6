"""What the extractor imitates where templates write: every family has its free and its guided half, and notes of its
own."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.config.load import load_experiment
from crl.records import Episode, Operation
from tests.learning.harness import rows, train
from tests.tiny_run import ROOT

pytestmark = pytest.mark.slow

EPISODES = 24


def test_a_family_is_guided_by_what_was_written_about_it(tmp_path: Path) -> None:
    changes = {
        "method.families": [
            {"name": "lake", "groups": 1, "environment": {"kind": "frozenlake"}},
            {"name": "boxes", "groups": 1, "environment": {"kind": "sokoban"}},
            {"name": "pond", "groups": 1, "environment": {"kind": "frozenlake", "size_max": 5}},
        ],
        "method.recipe.warm_start": {"actor_episodes": 6, "extractor_episodes": EPISODES, "learning_rate": 1e-3},
    }
    run = train(load_experiment(ROOT / "conf/tiny.yaml", changes), tmp_path, 0)
    episodes = rows(run, Episode, "warm_start_extractor", [0])
    family_of = {episode.episode_id: episode.family for episode in episodes}
    written: dict[str, set[str]] = {}
    for operation in rows(run, Operation, "warm_start_extractor", [0]):
        if operation.text:
            written.setdefault(family_of[operation.episode_ids[0]], set()).add(operation.text)
    for family in ("lake", "boxes", "pond"):
        own = [episode for episode in episodes if episode.family == family]
        guided = [episode for episode in own if episode.guided]
        assert len(own) == EPISODES / 3 and 1 <= len(guided) <= len(own) / 2
        assert all(episode.experience in written[family] for episode in guided)
