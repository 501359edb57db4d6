"""Metrics of the stage `health` against numbers counted by hand."""

from __future__ import annotations

import pytest

from crl.records import Episode
from crl.rounds.alarms import health_metrics
from crl.rounds.health import (
    FEWEST_EXPERIENCES,
    ExperienceTruth,
    age_metrics,
    claim_share,
    coverage,
    cut_alarm,
    cut_metrics,
    group_metrics,
    one_text_share,
    output_alarms,
    output_shares,
    play_metrics,
    reading_metrics,
    reward_metrics,
    truth_share,
    update_metrics,
    written_metrics,
)


def episode(group: int, member: int, *, guided: bool, success: bool, error: str | None = None) -> Episode:
    return Episode(
        episode_id=f"r0001-r0-g{group:04d}-m{member:03d}", round=1, family="r0", group=group, member=member,
        environment_seed=group, guided=guided, entry_ids=["x"] if guided else [],
        content_digests=["0" * 64] if guided else [], experiences=["take A then B"] if guided else [], goal="r0",
        success=success, reward=float(success), turns=3, invalid_actions=0,
        stop_reason="error" if error else "success" if success else "failure", error=error,
        generation_ids=[f"a-{group}-{member}"], tokens_read=4, tokens_sampled=3,
        last_observation=None if error else "over",
    )  # fmt: skip


def group(number: int, guided: list[bool], free: list[bool]) -> list[Episode]:
    marked = [*((True, each) for each in guided), *((False, each) for each in free)]
    return [episode(number, member, guided=how, success=won) for member, (how, won) in enumerate(marked)]


def test_shares_of_outputs_sum_to_one():
    shares = output_shares(["add", "add", "malformed", "return"])
    assert shares["share_add"] == 0.5 and shares["share_malformed"] == shares["share_return"] == 0.25
    assert sum(shares.values()) == 1.0
    assert output_shares([]) == {}


def test_shares_of_outputs_alarm_when_unscored_outputs_take_over() -> None:
    shares = output_shares([*["malformed"] * 6, "add"])
    assert shares["share_malformed"] == pytest.approx(6 / 7) and shares["share_add"] == pytest.approx(1 / 7)
    assert list(output_alarms(shares)) == ["share_malformed"] and "86%" in output_alarms(shares)["share_malformed"]
    assert output_alarms(output_shares(["return", "add"])) == {} == output_alarms({}), "half is not above the bound"
    assert list(output_alarms(output_shares(["return", "return", "add"]))) == ["share_return"]


def test_the_truth_of_notes_counts_what_is_fully_right_where_somebody_knows():
    experiences = [ExperienceTruth("r0", "take A then B", 1.0), ExperienceTruth("r0", "take A then C", 0.5),
             ExperienceTruth("r1", "go on", None),
             ExperienceTruth("lake", "stay dry", None)]  # fmt: skip
    assert truth_share("experiences_true", experiences, ["r0", "r1"]) == {"experiences_true": pytest.approx(1 / 3)}
    assert claim_share("experiences_claiming", experiences, ["r0", "r1"]) == {
        "experiences_claiming": pytest.approx(2 / 3)
    }
    assert truth_share("experiences_true", experiences, []) == {}, "nobody knows"


def test_notes_that_the_embedder_cuts_are_an_alarm():
    assert cut_metrics([]) == {} and cut_alarm({}) == {}
    assert cut_alarm(cut_metrics([False, False])) == {}
    metrics = cut_metrics([True, False, False, False])
    assert metrics == {"experiences_cut_by_embedder": 0.25}
    (row,) = [row for row in health_metrics(metrics, {}, set(), round=3, alarms=cut_alarm(metrics)) if row.alarm]
    assert row.name == "experiences_cut_by_embedder" and row.alarm is not None and "25%" in row.alarm


def test_coverage_counts_families_with_a_note_and_with_a_right_one():
    experiences = [ExperienceTruth("r0", "take A then B", 1.0), ExperienceTruth("r1", "take A then C", 0.5)]
    found = coverage(["r0", "r1", "r2", "lake"], ["r0", "r1", "lake", "gone"], experiences, ["r0", "r1", "r2"])
    assert found == {"families_with_experience": 0.75, "families_with_true_experience": pytest.approx(1 / 3)}
    assert coverage(["lake"], [], [], []) == {"families_with_experience": 0.0}


def test_what_the_extractor_could_read_and_an_alarm_for_every_cut():
    assert reading_metrics([(4, 4), (6, 6)]) == ({"turns_shown": 1.0, "prompts_cut": 0.0}, {})
    metrics, alarms = reading_metrics([(4, 4), (10, 3), (6, 0)])
    assert metrics == {"turns_shown": 0.35, "prompts_cut": pytest.approx(2 / 3)}
    assert alarms == {
        "prompts_cut": "2 of 3 extractor prompts were cut and show 35% of the turns: raise extractor.context"
    }
    assert reading_metrics([]) == ({}, {}), "a round without distillation"


def test_distinct_texts_are_counted_a_family():
    experiences = [
        ExperienceTruth("r0", "a"),
        ExperienceTruth("r0", "a"),
        ExperienceTruth("r1", "a"),
        ExperienceTruth("r1", "b"),
    ]
    assert written_metrics(experiences) == {"experiences_new": 4.0, "experiences_distinct": 0.75}
    assert written_metrics([]) == {"experiences_new": 0.0}


def test_one_text_is_looked_for_over_all_families_and_a_right_one_is_no_repetition():
    wrong = (
        [ExperienceTruth("r0", "a", 0.0)] * 3
        + [ExperienceTruth("r1", "a", 1.0)] * 3
        + [ExperienceTruth("r1", "b", 0.0)] * 2
    )
    assert len(wrong) == FEWEST_EXPERIENCES
    assert one_text_share(wrong) == {"experiences_one_text": 3 / 8}
    assert one_text_share([ExperienceTruth("r0", "a", 1.0)] * 8) == {"experiences_one_text": 0.0}
    assert one_text_share([ExperienceTruth("r0", "a")] * 8) == {"experiences_one_text": 1.0}
    assert one_text_share([ExperienceTruth("r0", "a")] * 7) == {}, "too few to say anything"


def test_success_and_what_guiding_adds():
    episodes = [*group(0, [True, True], [True, False]), episode(1, 0, guided=False, success=False, error="broke")]
    assert play_metrics(episodes) == {"success": 0.75, "success_guided_minus_free": 0.5}
    assert play_metrics(group(0, [], [True, False])) == {"success": 0.5}
    assert play_metrics([]) == {}


def test_a_group_without_variance_is_judged_by_its_baselines():
    split = group(0, [True, True], [False, False])
    assert group_metrics(split, subgroups=True) == {"actor_groups_equal": 1.0}
    assert group_metrics(split, subgroups=False) == {"actor_groups_equal": 0.0}
    mixed = [*split, *group(1, [True, False], [False, False])]
    assert group_metrics(mixed, subgroups=True) == {"actor_groups_equal": 0.5}
    broken = [episode(0, 0, guided=False, success=False, error="broke")]
    assert group_metrics(broken, subgroups=True) == {}


def test_the_rewards_of_a_batch():
    found = reward_metrics([-2.0, -2.0, 1.0, 1.0, 1.0, -1.0], [-1.0, -1.0, 0.0, 0.5, 0.5, 0.0])
    assert found["extractor_reward_mean"] == pytest.approx(-1 / 3)
    assert found["extractor_reward_std"] == pytest.approx((34 / 18) ** 0.5)
    assert found["extractor_reward_at_minimum"] == pytest.approx(1 / 3)
    assert found["extractor_reward_equal"] == 0.5
    assert found["extractor_without_gradient"] == pytest.approx(1 / 3)
    assert reward_metrics([], []) == {}, "no batch"


def test_clipping_is_told_of_a_step_only():
    update = {
        "clipped_low": 0.1, "clipped_high": 0.2, "ratio_mean": 1.01, "ratio_max": 2.0, "logprob_mismatch": 0.3,
        "stepped": 1.0,
    }  # fmt: skip
    assert update_metrics("actor", update) == {
        "actor_stepped": 1.0, "actor_clipped": pytest.approx(0.3), "actor_ratio_mean": 1.01, "actor_ratio_max": 2.0,
        "actor_logprob_mismatch": 0.3,
    }  # fmt: skip
    assert update_metrics("actor", {"samples": 8.0, "stepped": 0.0}) == {"actor_stepped": 0.0}


def test_ages():
    assert age_metrics("trained_age", [1, 3, 5]) == {"trained_age_mean": 3.0, "trained_age_max": 5.0}
    assert age_metrics("trained_age", []) == {}
