"""Every kind of collapse is named after five rounds with its sign, and near misses are not."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from crl.rounds.alarms import ROUNDS, health_metrics

BOTH = frozenset({"actor", "extractor"})
SOUND = {
    "share_without_experience": 0.3, "experiences_one_text": 0.2, "extractor_without_gradient": 0.1,
    "extractor_reward_mean": 0.0, "success": 0.4, "actor_groups_equal": 0.2,
}  # fmt: skip


def alarms(rounds: Sequence[dict[str, float | None]], *, trained=BOTH) -> list[str | None]:
    """The alarm of each of these rounds, from 1 on; a metric of None is absent."""
    previous: dict[str, float] = {}
    found = []
    for number, changes in enumerate(rounds, start=1):
        metrics = {name: value for name, value in {**SOUND, **changes}.items() if value is not None}
        rows = health_metrics(metrics, previous, trained, round=number)
        previous = {row.name: row.value for row in rows}
        assert len(previous) == len(rows), "a name twice"
        collapsed = next(row for row in rows if row.name == "collapsed")
        assert (collapsed.value > 0) == (collapsed.alarm is not None)
        assert all(row.alarm is None for row in rows if row is not collapsed)
        found.append(collapsed.alarm)
    return found


@pytest.mark.parametrize(
    ("sign", "told"),
    [
        (
            {"share_without_experience": 0.81},
            "the extractor writes no experiences: more than 80% of its outputs are malformed or return",
        ),
        ({"experiences_one_text": 0.9}, "one text is more than 80% of the new experiences or reflections"),
        ({"extractor_without_gradient": 1.0}, "no update of the extractor is possible: all rewards"),
        (  # free games are won, and whatever is noted is lost
            {"extractor_without_gradient": 1.0, "extractor_reward_mean": -1.0, "success": 0.9},
            "no update of the extractor is possible: all rewards",
        ),
        ({"success": 0.0}, "no episode succeeds any more"),
        (
            {"actor_groups_equal": 1.0, "actor_stepped": 0.0},
            "no update of the actor is possible: all rewards of each baseline are equal",
        ),
    ],
)
def test_a_sign_that_stands_is_named_with_its_first_round(sign, told):
    found = alarms([{}, {}, *[sign] * (ROUNDS + 1), {}])
    assert found[: ROUNDS + 1] == [None] * (ROUNDS + 1)
    assert all(alarm is not None and told in alarm for alarm in found[ROUNDS + 1 : ROUNDS + 3]), found
    assert all(alarm.endswith("since round 3") for alarm in found[ROUNDS + 1 : ROUNDS + 3] if alarm)
    assert found[-1] is None, "it is over"


@pytest.mark.parametrize(
    "near",
    [
        {"share_without_experience": 0.8},
        {"experiences_one_text": 0.8},
        {"extractor_without_gradient": 0.98},
        {"extractor_without_gradient": 1.0, "success": 0.82},  # nothing is left that an experience could add
        {"extractor_without_gradient": 1.0, "extractor_reward_mean": 1.0, "success": 0.82},
        {"success": 0.01},
        {"actor_groups_equal": 0.97},
        {"actor_groups_equal": 1.0, "success": 1.0},  # solved
        {"actor_groups_equal": 1.0, "actor_stepped": 1.0},  # self-distillation trains it
    ],
)
def test_a_near_miss_is_no_collapse(near):
    assert alarms([near] * (3 * ROUNDS)) == [None] * (3 * ROUNDS)


def test_a_sign_that_is_interrupted_begins_anew():
    sign = {"share_without_experience": 1.0}
    found = alarms([*[sign] * (ROUNDS - 1), {}, *[sign] * ROUNDS])
    assert found[:-1] == [None] * (2 * ROUNDS - 1)
    assert found[-1] is not None and "since round 6" in found[-1]


def test_rounds_without_a_batch_say_nothing_about_its_rewards():
    full, waits = {"extractor_without_gradient": 1.0}, {"extractor_without_gradient": None}
    found = alarms([full, waits, full, waits, full, full, waits, full, waits])
    assert found[:-2] == [None] * 7
    assert all(alarm is not None and alarm.endswith("since round 1") for alarm in found[-2:])


def test_an_actor_that_never_succeeded_has_not_lost_its_success():
    never = {"success": 0.0, "actor_groups_equal": 0.5}
    assert alarms([never] * (2 * ROUNDS)) == [None] * (2 * ROUNDS)


def test_a_role_that_is_not_trained_cannot_collapse():
    dead = {"success": 0.0, "actor_groups_equal": 1.0, "extractor_without_gradient": 1.0}
    assert alarms([{}, *[dead] * ROUNDS], trained=frozenset()) == [None] * (ROUNDS + 1)
    assert alarms([{}, *[dead] * ROUNDS], trained=frozenset({"extractor"}))[-1] is not None


def test_kinds_that_stand_together_are_all_named():
    dead = {"success": 0.0, "actor_groups_equal": 1.0}
    told = alarms([{}, *[dead] * ROUNDS])[-1]
    assert told is not None and "no episode succeeds any more" in told and "no update of the actor" in told


def test_a_baseline_has_no_extractor_to_collapse():
    none = dict.fromkeys(("share_without_experience", "experiences_one_text", "extractor_without_gradient"))
    assert alarms([none] * (2 * ROUNDS), trained=frozenset({"actor"})) == [None] * (2 * ROUNDS)
