"""Experiential RL where rewards lie between 0 and 1: gate, gain, revisions, and what malformed reflections earn."""

from __future__ import annotations

from collections import defaultdict

import pytest

from crl.recipes.erl.config import ErlConfig
from crl.recipes.erl.rows import Reflection
from crl.records import Episode, Generation, Metric, Sample, Turn
from tests.recipes.erl.erl_played import paid
from tests.unit.recipes.played import Played

ATTEMPTS, REFLECTING = ("collect", "retry", "retry_2"), ("reflect", "reflect_2")
MALFORMED = -0.25


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return paid(
        tmp_path_factory.mktemp("till"), 1, method__families__0__groups=8, method__recipe__revisions=2,
        method__recipe__reflect__malformed_reward=MALFORMED,
    )  # fmt: skip


def attempts(run: Played, stage: str) -> dict[str, Episode]:
    return {row.episode_id: row for row in run.rows(Episode, stage, 1)}


def by_group(run: Played) -> dict[tuple[int, str], list[Sample]]:
    """Samples of the clipped objective by task and the stage that made them: a stage is one stream of one revision."""
    groups = {row.generation_ids[0]: row.group for stage in ATTEMPTS for row in run.rows(Episode, stage, 1)}
    for stage, later in zip(REFLECTING, ATTEMPTS[1:], strict=True):
        retries = attempts(run, later)
        groups |= {row.generation_id: retries[row.retry_id].group for row in run.rows(Reflection, stage, 1)}
    found: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in run.rows(Sample, "credit", 1):
        if sample.objective == "grpo":
            found[groups[sample.generation_id], sample.source.removeprefix("0001/")].append(sample)
    return found


@pytest.mark.slow
def test_the_gate_goes_by_the_reward_whether_it_is_a_success_or_not(run: Played) -> None:
    first = attempts(run, "collect")
    assert {(row.reward, row.success) for row in first.values()} >= {
        (0.5, False), (0.5, True), (1.0, False), (1.0, True),
    }  # fmt: skip
    below = [name for name, row in first.items() if row.reward in (0.0, 0.25, 0.5)]
    assert [row.episode_id for row in run.rows(Reflection, "reflect", 1)] == below
    assert [*attempts(run, "retry")] == [f"{name}-a2" for name in below]


def test_a_gate_between_0_and_1_lets_through_what_reaches_it() -> None:
    config = ErlConfig(gate=0.5)
    assert [config.passes(reward) for reward in (0.0, 0.25, 0.5, 1.0)] == [False, False, True, True]


def test_the_gain_of_trying_again_is_what_each_attempt_earned_more_than_the_one_before(run: Played) -> None:
    first, second, third = (attempts(run, stage) for stage in ATTEMPTS)
    gains = [row.reward - first[name.removesuffix("-a2")].reward for name, row in second.items()]
    gains += [row.reward - second[name.removesuffix("-a3") + "-a2"].reward for name, row in third.items()]
    assert any(row.reward == 0.5 for row in first.values()) and third
    [found] = [row.value for row in run.rows(Metric, "health", 1) if row.name == "retry_gain"]
    assert found == pytest.approx(sum(gains) / len(gains))


def test_every_revision_is_normalized_on_its_own(run: Played) -> None:
    groups = by_group(run)
    assert {stage for _, stage in groups} == {*ATTEMPTS, *REFLECTING}
    for earlier, later in (REFLECTING, ATTEMPTS[1:]):
        assert any((task, earlier) in groups and (task, later) in groups for task, _ in groups), "both of one task"
    for members in groups.values():
        rewards = [each.reward for each in members]
        mean = sum(rewards) / len(rewards)
        deviation = (sum((reward - mean) ** 2 for reward in rewards) / len(rewards)) ** 0.5
        for each in members:
            expected = each.reward if len(members) == 1 else (each.reward - mean) / deviation if deviation else 0.0
            assert each.advantage == pytest.approx(expected, abs=1e-9)


def test_each_further_reflection_is_given_the_feedback_of_the_attempt_before_it(run: Played) -> None:
    said = {
        turn.episode_id: f"That pays {turn.output.split()[0]} in all."
        for stage in ATTEMPTS
        for turn in run.rows(Turn, stage, 1)
    }
    fresh = 0
    for stage, ending in zip(REFLECTING, ("", "-a2"), strict=True):
        prompts = {row.generation_id: row.prompt for row in run.rows(Generation, stage, 1)}
        for row in run.rows(Reflection, stage, 1):
            first = row.retry_id.rpartition("-a")[0]
            assert row.episode_id == first + ending
            assert row.feedback == said[row.episode_id] and row.feedback in prompts[row.generation_id]
            if said[first] != row.feedback:
                assert said[first] not in prompts[row.generation_id], "nothing of an attempt before that one"
                fresh += 1
    assert fresh > 0, "some second attempt earned other than the first"


def test_a_malformed_reflection_earns_the_number_that_is_set_and_its_attempt_what_it_earned(run: Played) -> None:
    earned = {row.generation_id: row.reward for row in run.rows(Sample, "credit", 1) if row.objective == "grpo"}
    malformed = other = 0
    for stage, later in zip(REFLECTING, ATTEMPTS[1:], strict=True):
        retries = attempts(run, later)
        for row in run.rows(Reflection, stage, 1):
            retry = retries[row.retry_id]
            assert earned[retry.generation_ids[0]] == retry.reward
            assert earned[row.generation_id] == (MALFORMED if row.text is None else retry.reward)
            malformed += row.text is None
            other += row.text is not None
    assert malformed > 0 and other > 0


def test_the_number_of_a_malformed_reflection_counts_in_the_advantages_of_its_group(run: Played) -> None:
    """Nothing earns less here, so a malformed reflection is below the mean of a group that has others."""
    told = 0
    for (_, stage), members in by_group(run).items():
        if stage in REFLECTING and {MALFORMED} < {each.reward for each in members}:
            lowest = [each.advantage for each in members if each.reward == MALFORMED]
            assert max(lowest) == min(each.advantage for each in members) < 0
            told += 1
    assert told > 0
