"""Credit: outcomes of guided episodes, free twins and scores."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from crl.credit.uses import credit_metrics, credits_of, entry_scores, free_means, uses_of
from crl.errors import RecordDamaged
from crl.records import Episode, Retrieval
from tests.unit.credit.scoring import scored


def episode(group: int, member: int, *, guided: bool, success: bool, **changes: Any) -> Episode:
    values: dict[str, Any] = {
        "episode_id": f"g{group}m{member}", "round": 3, "family": "room", "group": group, "member": member,
        "environment_seed": group, "guided": guided, "entry_ids": ["e1"] if guided else [],
        "content_digests": ["d1"] if guided else [], "experiences": ["x"] if guided else [], "goal": "goal",
        "success": success, "reward": float(success), "turns": 1, "invalid_actions": 0,
        "tokens_read": 4, "tokens_sampled": 2,
        "stop_reason": "success" if success else "failure", "error": None, "generation_ids": [f"a-g{group}m{member}"],
        "last_observation": "over",
    }  # fmt: skip
    return Episode(**{**values, **changes})


def retrieval(of: Episode, *, chosen: bool = True, **changes: Any) -> Retrieval:
    values: dict[str, Any] = {
        "episode_id": of.episode_id, "round": 3, "bank_round": 2, "family": "room", "entry_id": of.entry_ids[0],
        "content_digest": of.content_digests[0], "generation_id": "x-1", "rank": 0, "similarity": 1.0,
        "rank_score": 0.0, "count": 0, "recent": False, "score": 0.0, "chosen": chosen,
    }  # fmt: skip
    return Retrieval(**{**values, **changes})


def test_a_guided_episode_earns_its_outcome_and_is_compared_with_its_free_twins() -> None:
    episodes = [
        episode(0, 0, guided=True, success=True),
        episode(0, 1, guided=True, success=False),
        episode(0, 2, guided=False, success=True),
        episode(0, 3, guided=False, success=False),
        episode(0, 4, guided=False, success=False),
        episode(0, 5, guided=False, success=False),
        episode(1, 0, guided=True, success=False),
    ]
    credits = credits_of(episodes, [retrieval(row) for row in episodes if row.guided])
    assert [row.outcome for row in credits] == [1.0, -1.0, -1.0]
    assert [row.free_mean for row in credits] == [-0.5, -0.5, None]
    assert [row.guided_minus_free for row in credits] == [1.5, -0.5, None]
    assert {row.generation_id for row in credits} == {"x-1"}


def test_each_of_several_experiences_is_used_and_earns_the_whole_outcome() -> None:
    several = {"entry_ids": ["e1", "e2"], "content_digests": ["d1", "d2"], "experiences": ["x", "y"]}
    guided = [episode(0, member, guided=True, success=member == 0, **several) for member in range(2)]
    free = episode(0, 2, guided=False, success=False)
    rows = []
    for each in guided:  # as they are recorded, by rank; shown by score
        rows.append(retrieval(each, rank=0, score=-2.0, entry_id="e2", content_digest="d2", generation_id="x-2"))
        rows.append(retrieval(each, rank=1, score=-1.0))
    credits = credits_of([*guided, free], rows)
    assert [(row.episode_id, row.entry_id, row.generation_id, row.outcome) for row in credits] == [
        ("g0m0", "e1", "x-1", 1.0), ("g0m0", "e2", "x-2", 1.0),
        ("g0m1", "e1", "x-1", -1.0), ("g0m1", "e2", "x-2", -1.0),
    ]  # fmt: skip
    assert {row.guided_minus_free for row in credits} == {2.0, 0.0}
    assert [(row.entry_id, row.uses) for row in entry_scores([], credits)] == [("e1", 2), ("e2", 2)]
    uses = uses_of([*guided, free], credits, rows)
    assert [(row.episode_id, row.entry_id, row.reward) for row in scored("outcome", uses).uses] == [
        (row.episode_id, row.entry_id, row.outcome) for row in credits
    ]
    running = scored("running_usefulness", uses, credits=credits, decay=0.5)
    assert [row.uses for row in running.after] == [2, 2]
    assert running.uses[2].reward == pytest.approx(-1 / 3)
    # Shown in another order, or without one of them, the episode is not the one that was planned.
    for wrong in ({"entry_ids": ["e2", "e1"], "content_digests": ["d2", "d1"]}, {"entry_ids": ["e1"],
                  "content_digests": ["d1"]}):  # fmt: skip
        with pytest.raises(RecordDamaged, match="g0m0"):
            credits_of([dataclasses.replace(guided[0], **wrong)], rows)


def test_candidates_that_were_not_chosen_earn_nothing() -> None:
    guided = episode(0, 0, guided=True, success=True)
    rows = [retrieval(guided, generation_id="other", chosen=False), retrieval(guided)]
    assert [row.generation_id for row in credits_of([guided], rows)] == ["x-1"]


def test_broken_episodes_are_neither_credited_nor_twins() -> None:
    broken = {"stop_reason": "error", "error": "environment_crashed"}
    episodes = [
        episode(0, 0, guided=True, success=True),
        episode(0, 1, guided=True, success=False, **broken),
        episode(0, 2, guided=False, success=True),
        episode(0, 3, guided=False, success=False, **broken),
    ]
    credits = credits_of(episodes, [retrieval(row) for row in episodes if row.guided])
    assert [(row.episode_id, row.free_mean) for row in credits] == [("g0m0", 1.0)]
    metrics = {row.name: row for row in credit_metrics(episodes, credits, round=3)}
    assert metrics["episodes_errored"].value == 2
    assert metrics["episodes_errored"].alarm
    assert metrics["guided_minus_free"].value == 0.0


@pytest.mark.parametrize("wrong", [{"content_digest": "other"}, {"entry_id": "other"}, {"chosen": False}])
def test_a_guided_episode_without_its_retrieval_is_damage(wrong: dict[str, Any]) -> None:
    guided = episode(0, 0, guided=True, success=True)
    with pytest.raises(RecordDamaged, match="g0m0"):
        credits_of([guided], [retrieval(guided, **wrong)])


def test_free_means_are_given_to_every_member_of_a_group_with_free_members() -> None:
    episodes = [
        episode(0, 0, guided=True, success=True),
        episode(0, 1, guided=False, success=True),
        episode(1, 0, guided=True, success=True),
        episode(0, 0, guided=False, success=False, family="maze", episode_id="maze-g0m0"),
    ]
    assert free_means(episodes) == {"g0m0": 1.0, "g0m1": 1.0, "maze-g0m0": -1.0}


def test_entry_scores_accumulate_over_rounds() -> None:
    first = [episode(0, member, guided=True, success=member < 1) for member in range(3)]
    scores = entry_scores([], credits_of(first, [retrieval(row) for row in first]))
    assert (scores[0].uses, scores[0].mean_outcome) == (3, pytest.approx(-1 / 3))
    later = [dataclasses.replace(first[0], round=7)]
    credits = credits_of(later, [retrieval(row) for row in later])
    scores = entry_scores(scores, credits)
    assert [(row.entry_id, row.uses, row.mean_outcome, row.last_used_round) for row in scores] == [("e1", 4, 0.0, 7)]


def test_a_rewritten_entry_starts_anew_with_its_first_use() -> None:
    first = [episode(0, member, guided=True, success=False) for member in range(3)]
    scores = entry_scores([], credits_of(first, [retrieval(row) for row in first]))
    assert [(row.content_digest, row.uses, row.mean_outcome) for row in scores] == [("d1", 3, -1.0)]
    assert entry_scores(scores, []) == scores, "until then its old uses stay, told by the digest"
    later = [episode(1, 0, guided=True, success=True, round=7, content_digests=["d2"])]
    scores = entry_scores(scores, credits_of(later, [retrieval(row) for row in later]))
    assert [(row.content_digest, row.uses, row.mean_outcome) for row in scores] == [("d2", 1, 1.0)]
