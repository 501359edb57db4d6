"""What a run of DreamGym with pools says of itself by SQL alone: shares, caps, order, batches, what was given."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import record_of
from crl.report.views import query
from tests.marks import sampled
from tests.recipes.dreamgym.dreamgym_played import experiment, played
from tests.recipes.dreamgym.given_file import write_given
from tests.tiny_run import cut_back
from tests.unit.recipes.played import Played

pytestmark = pytest.mark.slow
ROUNDS, STEPS, BATCH, CAP = 4, 3, 8, 10
SEEDS = (1, 2, 3, 4, 999)
"""Levels of the given episodes; the last one is held out."""


def settings(folder: Path) -> dict[str, Any]:
    file = folder / "given.jsonl"
    if not file.exists():
        write_given(file, experiment().method.families[0], SEEDS)
    return {
        "method__recipe__given": str(file), "method__recipe__explore__first": 0, "method__evaluation__every": 0,
        "method__recipe__pools": {"steps": STEPS, "batch": BATCH, "real_share": 0.5, "real": CAP, "synthetic": CAP},
        "method__recipe__synthetic_share": 0.5,
        "method__recipe__curriculum": {
            "rule": "capability", "capability": "mean", "share": 1.0, "tasks": 1, "noise": 0.0,
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dreamgym")


@pytest.fixture(scope="module")
def run(folder: Path) -> Played:
    return played(folder / "runs", ROUNDS, **settings(folder))


def sql(run: Played, text: str) -> list[tuple[Any, ...]]:
    return query(run.run.path, text)[1]


def test_every_batch_is_half_real_and_repeats_nothing(run: Played) -> None:
    drawn = sql(
        run,
        "SELECT round, step, count(*), count(DISTINCT episode_id), count(*) FILTER (pool = 'real') FROM pool_draws "
        "GROUP BY ALL ORDER BY ALL",
    )
    told = sql(run, "SELECT round, step, real + synthetic, real FROM pool_batches ORDER BY ALL")
    assert [(*row[:3], row[4]) for row in drawn] == told and all(row[2] == row[3] for row in drawn)
    assert {step for _, step, *_ in told} == set(range(STEPS))
    for _, _, size, real in told:
        assert real == int(0.5 * size + 0.5)
    assert (BATCH, BATCH // 2) in {row[2:] for row in told}
    samples = sql(run, "SELECT round, step, generation_id FROM samples WHERE role = 'actor' ORDER BY ALL")
    assert samples == sql(
        run,
        "SELECT d.round, d.step, unnest(p.generation_ids) FROM pool_draws d JOIN episode_pool p "
        "USING (round, episode_id) ORDER BY ALL",
    )
    weights = "SELECT sum(weight) FROM samples WHERE role = 'actor' GROUP BY round, step"
    assert all(total == pytest.approx(1.0) for [total] in sql(run, weights))


def test_pools_keep_their_caps_and_the_oldest_leave_first(run: Played) -> None:
    held = sql(run, "SELECT pool, round, count(*) FROM episode_pool WHERE status = 'held' GROUP BY ALL")
    assert max(count for *_, count in held) == CAP
    for pool in ("real", "synthetic"):
        of = f"FROM episode_pool WHERE pool = '{pool}'"
        gone = sql(run, f"SELECT entered_order {of} AND status = 'evicted' ORDER BY round, entered_order")
        assert gone == sql(run, f"SELECT DISTINCT entered_order {of} ORDER BY ALL")[: len(gone)]
    assert sql(run, "SELECT count(*) FROM episode_pool WHERE status = 'evicted'") > [(0,)]
    streams = sql(run, "SELECT DISTINCT pool, stream FROM episode_pool JOIN episodes USING (episode_id) ORDER BY ALL")
    assert streams == [("real", "given"), ("real", "real"), ("synthetic", "synthetic")]


def test_what_was_given_is_in_the_store_and_in_the_pool_and_was_sampled_by_nobody(run: Played) -> None:
    steps = sql(run, "SELECT split, count(DISTINCT episode_id) FROM transitions WHERE policy = 'given' GROUP BY ALL")
    assert sorted(steps) == [("fit", 2 * len(SEEDS) - 2), ("held_out", 2)]
    stored = sql(
        run, "SELECT DISTINCT pool FROM pool WHERE transition_id LIKE 't-given-%' AND entered = 1 ORDER BY ALL"
    )
    assert stored == [("held_out",), ("real",)]
    first = sql(run, "SELECT count(*) FROM episodes WHERE stage = 'explore' AND round = 1")
    assert first == [(0,)], "given transitions stand for those that would be explored"
    sampled_logprobs = "SELECT DISTINCT list_sum(logprobs) FROM generations WHERE stage = 'given'"
    assert sql(run, sampled_logprobs) == [(0.0,)]
    advantages = sql(
        run,
        "SELECT e.success, sign(p.advantage) FROM episode_pool p JOIN episodes e USING (episode_id) "
        "WHERE p.generation_stage = 'given' GROUP BY ALL ORDER BY ALL",
    )
    assert advantages == [(False, -1), (True, 1)], "a won and a lost episode at one level are a group"


def test_a_new_task_a_round_is_as_hard_as_the_mean_success_of_completed_ones_and_a_step(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        [[mean]] = sql(
            run,
            "SELECT coalesce(avg(success), 0.5) FROM (SELECT arg_max(success, round) AS success FROM task_values "
            f"WHERE synthetic AND success >= 0.7 AND round < {number} GROUP BY environment_seed, first_observation)",
        )
        made = sql(run, f"SELECT aimed FROM dream_tasks WHERE made = 'graded' AND round = {number}")
        assert made == [(pytest.approx(min(1.0, mean + 0.2)),)]
        told = sql(run, f"SELECT value FROM metrics WHERE name = 'capability_lake' AND round = {number}")
        assert told == [(pytest.approx(mean),)]
    assert sql(run, "SELECT count(*) FROM task_values WHERE synthetic AND success >= 0.7") > [(0,)]


def test_the_record_is_intact(run: Played) -> None:
    assert problems_of(run.run, run.recipe, record_of(run.run.path)) == []


@pytest.mark.parametrize("place", sampled(["0/given", "1/gather", "3/credit", "2/plan"], 2))
def test_it_resumes_to_equal_digests(run: Played, folder: Path, tmp_path: Path, place: str) -> None:
    copied = shutil.copytree(run.run.path, tmp_path / run.run.path.name)
    number, _, stage = place.partition("/")
    cut_back(copied, int(number), stage)
    assert not (copied / f"rounds/000{place}").exists()
    assert played(tmp_path, ROUNDS, **settings(folder)).digests() == run.digests()
