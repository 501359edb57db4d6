"""Eq. 8 and the variants of credit, against plain sums: what an extractor output is rewarded for the uses of its text.

r(m) is the mean over the uses of m of s_c + r: ±1 for the outcome (or a variant), s_c 1 / 0.5 / 0 for the actor's
verdict, s_c alone where the experience was rejected, r alone where the verdict was none.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from crl.config import ExtractorObjective
from crl.credit.buffer import Output, fill_buffer
from crl.credit.rules import Scored
from crl.credit.samples import cispo_samples, select_batches
from crl.credit.uses import credits_of, uses_of
from crl.errors import RecordDamaged
from crl.recipes.complementary.mechanisms.actor_critic import verdict_metrics
from crl.records import BufferItem, Credit, Critique, EntryUsefulness, Episode, Generation, Retrieval
from tests.unit.credit.scoring import scored

ROUNDS, GROUPS, MEMBERS, ENTRIES = 3, 12, 6, 8
SCORE = {"accept": 1.0, "refine": 0.5, "reject": 0.0, "malformed": None}
OUTPUT = {f"e{index}": f"out{index % 5}" for index in range(ENTRIES)}
"""Outputs by entry: some wrote several entries."""
Played = tuple[list[Episode], list[Retrieval], list[Critique]]


def played(round_number: int, rng: np.random.Generator, *, critiqued: bool) -> Played:
    """One round of random groups: guided, rejected, free and broken episodes, some groups without a free one."""
    episodes, retrievals, critiques = [], [], []
    for group in range(GROUPS):
        guided_slots = MEMBERS if group % 4 == 0 else int(rng.integers(1, MEMBERS))
        for member in range(MEMBERS):
            episode_id = f"r{round_number}-g{group}-m{member}"
            entry: str | None = f"e{rng.integers(ENTRIES)}" if member < guided_slots else None
            text = None if entry is None else f"text of {entry}"
            if entry is not None:
                retrievals.append(
                    Retrieval(
                        episode_id=episode_id, round=round_number, bank_round=round_number - 1, family="f",
                        entry_id=entry, content_digest=f"d-{entry}", generation_id=OUTPUT[entry], rank=0,
                        similarity=1.0, rank_score=0.0, count=0, recent=False, score=0.0, chosen=True,
                    )
                )  # fmt: skip
                verdict = str(rng.choice(list(SCORE))) if critiqued else None
                if verdict is not None:
                    text = {"refine": "rewritten", "reject": None}.get(verdict, text)
                    critiques.append(
                        Critique(
                            episode_id=episode_id, round=round_number, family="f", entry_id=entry,
                            content_digest=f"d-{entry}", generation_id=f"c-{episode_id}", success_rate=None,
                            verdict=verdict, reason_code="no_verdict" if verdict == "malformed" else "ok",
                            score=SCORE[verdict], text=text,
                        )
                    )  # fmt: skip
            broken, success = bool(rng.random() < 0.1), bool(rng.random() < 0.5)
            episodes.append(
                Episode(
                    episode_id=episode_id, round=round_number, family="f", group=group, member=member,
                    environment_seed=group, guided=text is not None, entry_ids=[entry] if text is not None else [],
                    content_digests=[f"d-{entry}"] if text is not None else [],
                    experiences=[] if text is None else [text], goal="g",
                    success=success and not broken, reward=float(success and not broken), turns=1, invalid_actions=0,
                    stop_reason="error" if broken else "success" if success else "failure",
                    error="environment_broke" if broken else None, generation_ids=[f"a-{episode_id}"], tokens_read=4,
                    tokens_sampled=2, last_observation=None if broken else "over",
                )
            )  # fmt: skip
    return episodes, retrievals, critiques


def earned(rounds: list[Played], credit: str, decay: float) -> dict[str, list[float]]:
    """What every output earned, use by use, by the text of section 3 and eq. 8 alone."""
    found: dict[str, list[float]] = defaultdict(list)
    outcomes_of_entry: dict[str, list[float]] = defaultdict(list)
    for episodes, retrievals, critiques in rounds:
        retrieved = {row.episode_id: row.entry_id for row in retrievals}
        verdicts = {row.episode_id: row.verdict for row in critiques}
        for episode in episodes:
            entry, verdict = retrieved.get(episode.episode_id), verdicts.get(episode.episode_id)
            if entry is None:
                continue
            if verdict == "reject":
                found[OUTPUT[entry]].append(0.0)
                continue
            if episode.error is not None:
                continue
            r = 1.0 if episode.success else -1.0
            outcomes_of_entry[entry].append(r)
            if credit == "guided_minus_free":
                twins = [
                    1.0 if other.success else -1.0
                    for other in episodes
                    if other.group == episode.group and not other.guided and other.error is None
                ]
                r -= float(np.mean(twins)) if twins else 0.0
            if credit == "running_usefulness":
                past = np.array(outcomes_of_entry[entry])
                weights = decay ** np.arange(len(past))[::-1]
                r = float(weights @ past / weights.sum())
            score = SCORE[verdict] if verdict is not None else None
            found[OUTPUT[entry]].append(r + (0.0 if score is None else score))
    return found


def generation(name: str) -> Generation:
    return Generation(
        generation_id=name, round=0, stage="distill", role="extractor", kind="distill", weights_digest="w",
        temperature=1.0, token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -0.5], prompt="p", output="o",
        stop_reason="end_of_turn",
    )  # fmt: skip


@pytest.mark.parametrize("critiqued", [False, True])
@pytest.mark.parametrize("credit", ["outcome", "guided_minus_free", "running_usefulness"])
@pytest.mark.parametrize("seed", range(3))
def test_the_reward_of_an_output_is_the_mean_of_what_its_uses_earned(seed: int, credit: Any, critiqued: bool) -> None:
    rng = np.random.default_rng(seed)
    config = ExtractorObjective(credit=credit, usefulness_decay=0.9, batch=len(set(OUTPUT.values())))
    rounds = [played(number, rng, critiqued=critiqued) for number in range(1, ROUNDS + 1)]
    buffer: list[BufferItem] = []
    kept: Sequence[EntryUsefulness] = []
    for number, (episodes, retrievals, critiques) in enumerate(rounds, start=1):
        credits = credits_of(episodes, retrievals, critiques)
        uses = uses_of(episodes, credits, retrievals, critiques)
        found = scored(credit, uses, credits=credits, before=kept, decay=0.9)
        kept, outputs = found.after, [Output(name, (0, "distill")) for name in sorted(set(OUTPUT.values()))]
        buffer = fill_buffer(buffer, outputs, found.earned, None, round=number)
    [selected], _ = select_batches(buffer, config, round=ROUNDS)
    samples = cispo_samples([selected], {name: generation(name) for name in OUTPUT.values()}, config, round=ROUNDS)
    expected = earned(rounds, credit, 0.9)
    assert {row.generation_id: row.uses for row in selected} == {name: len(each) for name, each in expected.items()}
    means = {name: float(np.mean(each)) for name, each in expected.items()}
    assert {row.generation_id: row.reward for row in samples} == pytest.approx(means)
    baseline = np.mean(list(means.values()))
    assert {row.generation_id: row.advantage for row in samples} == pytest.approx(
        {name: mean - baseline for name, mean in means.items()}
    )


def test_with_every_switch_off_a_use_earns_its_outcome_and_nothing_is_kept() -> None:
    episodes, retrievals, _ = played(1, np.random.default_rng(0), critiqued=False)
    credits = credits_of(episodes, retrievals)
    found = scored("outcome", uses_of(episodes, credits, retrievals))
    assert not found.after and not found.metrics
    assert [(row.episode_id, row.generation_id, row.reward) for row in found.uses] == [
        (row.episode_id, row.generation_id, row.outcome) for row in credits
    ]
    assert {row.basis for row in found.uses} == {"outcome"} and {row.critic_score for row in found.uses} == {None}


def test_a_use_without_free_twins_earns_its_outcome_and_is_counted() -> None:
    episodes, retrievals, _ = played(1, np.random.default_rng(1), critiqued=False)
    credits = credits_of(episodes, retrievals)
    found = scored("guided_minus_free", uses_of(episodes, credits, retrievals), credits=credits)
    alone = [row for row in found.uses if row.basis == "outcome"]
    assert alone and {row.episode_id for row in alone} == {row.episode_id for row in credits if row.free_mean is None}
    assert found.metrics == {"uses_without_unguided": len(alone)}


def test_the_usefulness_of_an_entry_is_a_mean_from_its_first_use_on() -> None:
    episodes, retrievals, _ = played(1, np.random.default_rng(2), critiqued=False)
    credit = credits_of(episodes, retrievals)[0]

    def used(now: Credit, kept: Sequence[EntryUsefulness]) -> Scored:
        uses = uses_of([row for row in episodes if row.episode_id == credit.episode_id], [now], retrievals)
        return scored("running_usefulness", uses, credits=[now], before=kept, decay=0.5)

    values, kept = [], list[EntryUsefulness]()
    for outcome in (1.0, 1.0, -1.0, -1.0):
        found = used(dataclasses.replace(credit, outcome=outcome), kept)
        values.append(found.uses[0].reward)
        kept = list(found.after)
    # Weights 1, ½, ¼, ⅛ from the latest backwards.
    assert values == pytest.approx([1.0, 1.0, (-1 + 0.5 + 0.25) / 1.75, (-1 - 0.5 + 0.25 + 0.125) / 1.875])
    assert kept[0].uses == 4
    found = used(dataclasses.replace(credit, content_digest="of other words", outcome=1.0), kept)
    assert found.uses[0].reward == 1.0 and [row.uses for row in found.after] == [1], "its writer answers for its words"


@pytest.mark.parametrize("change", [{"text": "other"}, {"verdict": "reject", "score": 0.0, "text": None}])
def test_an_episode_that_was_played_otherwise_than_judged_is_damage(change: dict[str, Any]) -> None:
    episodes, retrievals, critiques = played(1, np.random.default_rng(3), critiqued=True)
    accepted = next(index for index, row in enumerate(critiques) if row.verdict == "accept")
    critiques[accepted] = dataclasses.replace(critiques[accepted], **change)
    with pytest.raises(RecordDamaged, match=critiques[accepted].episode_id):
        credits_of(episodes, retrievals, critiques)


def test_a_rejected_experience_that_nothing_retrieved_is_damage() -> None:
    episodes, _, critiques = played(1, np.random.default_rng(3), critiqued=True)
    with pytest.raises(RecordDamaged, match="rejected"):
        uses_of(episodes, [], [], critiques)


def test_verdicts_are_told_and_one_sided_ones_are_an_alarm() -> None:
    critiques = [row for number in range(4) for row in played(1, np.random.default_rng(number), critiqued=True)[2]]
    shares, alarms = verdict_metrics(critiques)
    assert sum(shares.values()) == pytest.approx(1.0) and not alarms
    rejected = [row for row in critiques if row.verdict == "reject"]
    assert list(verdict_metrics(rejected)[1]) == ["verdict_reject"]
    assert verdict_metrics([]) == ({}, {})
