"""What a run of importance-weighted replay says of itself by SQL alone: caps, order, batches, labels of tasks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import record_of
from crl.report.views import query
from tests.marks import sampled
from tests.recipes.importance_replay.replay_played import played
from tests.tiny_run import cut_back
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow
ROUNDS, CAPACITY, BATCH, STEPS, EPISODES = 5, 24, 20, 3, 24
SETTINGS = {
    "method__recipe__probe__scope": "task", "method__recipe__buffer__steps": STEPS,
    "method__recipe__buffer__batch": BATCH,
    "method__recipe__extractor__refresh_every": 2 * EPISODES, "method__evaluation__every": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("replay"), ROUNDS, **SETTINGS)


def sql(run: Played, text: str) -> list[tuple[Any, ...]]:
    return query(run.run.path, text)[1]


def test_no_sample_is_twice_in_a_batch_and_a_smaller_buffer_gives_all_it_has(run: Played) -> None:
    batches = sql(run, "SELECT round, step, count(*), count(DISTINCT generation_id) FROM replay_draws GROUP BY ALL")
    held = dict(sql(run, "SELECT round, count(DISTINCT episode_id) FROM replay WHERE status = 'held' GROUP BY ALL"))
    assert sorted(batches) == [
        (number, step, size, size)
        for number in range(1, ROUNDS + 1)
        for step in range(STEPS)
        for size in [min(BATCH, held[number])]
    ]
    assert held[1] < BATCH < held[ROUNDS], "both happen"
    assert not sql(
        run, "SELECT * FROM replay_draws d ANTI JOIN (FROM replay WHERE status = 'held') r USING (round, generation_id)"
    )
    samples = "SELECT round, step, generation_id FROM samples"
    assert sorted(sql(run, samples)) == sorted(sql(run, "SELECT round, step, generation_id FROM replay_draws"))


def test_the_buffer_keeps_its_cap_and_the_oldest_leave_first(run: Played) -> None:
    held = sql(run, "SELECT count(DISTINCT episode_id) FROM replay WHERE status = 'held' GROUP BY round")
    assert max(held) == (CAPACITY,)
    gone = sql(run, "SELECT entered_order FROM replay WHERE status = 'evicted' ORDER BY round, entered_order")
    entered = sql(run, "SELECT DISTINCT entered_order FROM replay ORDER BY ALL")
    assert gone and gone == entered[: len(gone)]


def test_probes_play_tasks_that_the_update_learns_from_and_labels_are_of_tasks(run: Played) -> None:
    assert not sql(run, "SELECT * FROM probe_pairs ANTI JOIN replay_draws USING (round, family, environment_seed)")
    labels = sql(
        run,
        "SELECT i.verdict, i.label, i.pairs, p.after - p.before FROM improvements i "
        "JOIN probe_pairs p USING (round, family, environment_seed)",
    )
    assert len(labels) == sql(run, "SELECT count(*) FROM probe_pairs")[0][0] > 20
    for verdict, label, pairs, difference in labels:
        expected = ("improved", 1.0) if difference > 0 else ("worse", 0.0) if difference < 0 else ("tie", None)
        assert (verdict, label, pairs) == (*expected, 1)
    labeled = sql(
        run,
        "SELECT d.round, count(*) FROM replay_draws d JOIN improvements USING (round, family, environment_seed) "
        "WHERE label IS NOT NULL GROUP BY ALL",
    )
    told = sql(run, "SELECT round, value FROM metrics WHERE name = 'draws_labeled' AND value > 0 AND stage = 'measure'")
    assert sorted(labeled) == sorted(told) and len(told) > 1


def test_scores_are_refreshed_and_rewards_averaged_by_episodes(run: Played) -> None:
    assert sql(run, "SELECT DISTINCT scored_round FROM replay WHERE scored_round IS NOT NULL ORDER BY ALL") == [
        (2,),
        (4,),
    ]
    for number in range(1, ROUNDS + 1):
        [[mean]] = sql(
            run,
            f"SELECT avg(reward) FROM (SELECT reward FROM episodes WHERE stage = 'collect' AND round <= {number} "
            'ORDER BY round DESC, "group" DESC, member DESC LIMIT 100)',
        )
        told = sql(run, f"SELECT value FROM metrics WHERE name = 'reward_mean_100' AND round = {number}")
        assert told == [(pytest.approx(mean),)]


def test_the_record_is_intact(run: Played) -> None:
    assert problems_of(run.run, run.recipe, record_of(run.run.path)) == []


@pytest.mark.parametrize("stage", sampled(["credit", "probe_before", "probe_after", "measure"], 2))
def test_a_run_with_labels_of_tasks_resumes_to_equal_digests(run: Played, tmp_path: Path, stage: str) -> None:
    copied = shutil.copytree(run.run.path, tmp_path / run.run.path.name)
    cut_back(copied, 4, stage)
    assert not (copied / f"rounds/0004/{stage}").exists()
    assert played(tmp_path, ROUNDS, **SETTINGS).digests() == run.digests()
