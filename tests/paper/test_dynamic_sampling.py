"""DAPO's dynamic sampling (arXiv 2503.14476, eq. 8 to 11): which groups teach something, apart from the code."""

from __future__ import annotations

import dataclasses
import math

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crl.config.mechanisms import ActorObjective, DynamicSampling
from crl.credit.samples import grpo_samples, trained_episodes, varied_groups
from crl.records import FREE, GUIDED, Episode, Sample
from crl.report.view_sql import SCALARS
from crl.rounds.stage import draw_of
from tests.unit.report.builder import episode, generation

MEMBER = st.tuples(st.integers(0, 3), st.sampled_from([GUIDED, FREE]), st.booleans(), st.booleans(), st.floats(-2, 2))
"""Group, stream, whether it was won, whether it broke, and a shaped reward, which may vary as it likes."""


def made(members: list[tuple[int, str, bool, bool, float]]) -> list[Episode]:
    return [
        dataclasses.replace(
            episode(1, place, guided=stream == GUIDED, success=won and not broke),
            episode_id=f"e{place}", group=group, member=place, stream=stream, reward=reward,
            generation_ids=[f"g{place}"], stop_reason="error" if broke else "success" if won else "turn_limit",
        )
        for place, (group, stream, won, broke, reward) in enumerate(members)
    ]  # fmt: skip


def solved(members: list[tuple[int, str, bool, bool, float]], group: int, streams: tuple[str, ...]) -> bool:
    """0 < solved rollouts < rollouts, of those of a group and of some streams that ended by the rules."""
    mine = [won for of, stream, won, broke, _ in members if of == group and stream in streams and not broke]
    return 0 < sum(mine) < len(mine)


@given(st.lists(MEMBER, max_size=24))
def test_a_group_teaches_where_one_of_its_streams_was_neither_all_won_nor_all_lost(
    members: list[tuple[int, str, bool, bool, float]],
) -> None:
    episodes = made(members)
    by_stream = {each for each in range(4) if any(solved(members, each, (stream,)) for stream in (GUIDED, FREE))}
    together = {each for each in range(4) if solved(members, each, (GUIDED, FREE))}
    assert {group for _, group in varied_groups(episodes)} == by_stream
    assert {group for _, group in varied_groups(episodes, pooled=True)} == together
    assert by_stream <= together
    assert trained_episodes(episodes, None) == episodes
    kept = trained_episodes(episodes, DynamicSampling())
    assert kept == [row for row in episodes if row.group in by_stream]


def test_guided_all_won_and_free_all_lost_teaches_nothing() -> None:
    """Each stream has its own baseline, and no reward stands for an outcome."""
    members = [(0, GUIDED, True, False, 1.0 + place) for place in range(4)]
    members += [(0, FREE, False, False, -1.0 - place) for place in range(4)]
    assert not varied_groups(made(members)) and varied_groups(made(members), pooled=True)
    advantages = [row.advantage for row in sampled(made(members))]
    assert all(abs(each) > 0.1 for each in advantages), "the shaped rewards differ, and would have been trained"


def sampled(episodes: list[Episode]) -> list[Sample]:
    """What an update learns of these episodes."""
    names = [name for row in episodes for name in row.generation_ids]
    records = {name: generation(name, 1, role="actor", prompt="", output="") for name in names}
    return grpo_samples(episodes, records, ActorObjective(), round=1)


@pytest.mark.parametrize(
    "name", ["collect", "collect_2", "plan_12", "critique_3", "retry_2", "update_2", "collect_2_3"]
)
def test_sql_knows_the_draws_of_a_stage(name: str) -> None:
    with duckdb.connect() as connection:
        connection.execute(f"CREATE MACRO draw_of(stage) AS {SCALARS['draw_of(stage)']}")
        assert connection.execute("SELECT draw_of(?)", [name]).fetchall() == [(draw_of(name)[0],)]


def test_groups_that_teach_nothing_are_no_part_of_the_mean() -> None:
    """What is trained of the others is what a round without them would train."""
    wins = {0: (0, 0), 1: (2, 0), 2: (4, 4), 3: (4, 1), 4: (4, 0)}
    members = [
        (group, stream, place < won[stream == FREE], False, float(place < won[stream == FREE]))
        for group, won in wins.items()
        for stream in (GUIDED, FREE)
        for place in range(4)
    ]
    episodes = made(members)
    kept = trained_episodes(episodes, DynamicSampling())
    assert kept == [row for row in episodes if row.group in (1, 3)]
    samples = {row.generation_id: row for row in sampled(kept)}
    for row in kept:
        won = wins[row.group][row.stream == FREE] / 4
        sample, spread = samples[row.generation_ids[0]], math.sqrt(won * (1 - won))
        assert sample.weight == pytest.approx(1 / 2 / 2 / 4), "two groups, two streams, four rollouts"
        assert sample.advantage == pytest.approx((row.reward - won) / spread if spread else 0.0)
    assert sum(row.weight for row in samples.values()) == pytest.approx(1.0)
