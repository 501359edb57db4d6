"""The mechanisms in whole rounds: every row they write fits the others; where they are off nothing of them shows."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

from crl.audit.audit import problems_of
from crl.bank.segments import load_texts
from crl.records import (
    BankSnapshot,
    BufferItem,
    Credit,
    Critique,
    EntryUsefulness,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Retrieval,
    Sample,
    StrippedContext,
    SuccessRate,
    Task,
    UseReward,
)
from crl.rounds.recipe import recorded_bank
from tests.unit.recipes.played import CRITIC, VERDICTS, Played, experiment

ROUNDS = 3
KINDS = {"ACCEPT": "accept", "REJECT": "reject", "REFINE: win": "refine", "hm": "malformed"}


@pytest.fixture(scope="module")
def critiqued(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Actor-critic, self-distillation in every second round, guided minus free."""
    made = experiment(
        method__recipe__actor_critic={"max_new_tokens": 32},
        method__prompts__critic=CRITIC,
        method__recipe__self_distillation={"every": 2, "episodes": "beats_free", "weight": 0.5},
        method__recipe__extractor_objective__credit="guided_minus_free",
        method__evaluation__every=ROUNDS,
    )
    return Played(tmp_path_factory.mktemp("critiqued"), made, ROUNDS)


def texts_then(played: Played, number: int) -> dict[str, str]:
    """Text by digest of the bank that a round retrieves from."""
    return load_texts(played.run.path, recorded_bank(played.run, played.recipe, number - 1).table)


def test_every_chosen_experience_is_judged_and_the_episode_is_played_by_the_verdict(critiqued: Played) -> None:
    seen = Counter()
    for number in range(1, ROUNDS + 1):
        chosen = {row.episode_id: row for row in critiqued.rows(Retrieval, "plan", number) if row.chosen}
        verdicts = {row.episode_id: row for row in critiqued.rows(Critique, "critique", number)}
        assert list(verdicts) == [
            row.episode_id for row in critiqued.rows(Task, "plan", number) if row.episode_id in chosen
        ]
        texts = texts_then(critiqued, number)
        for episode in critiqued.rows(Episode, "collect", number):
            verdict = verdicts.get(episode.episode_id)
            if verdict is None:
                assert not episode.guided
                continue
            text = texts[chosen[episode.episode_id].content_digest]
            kind = KINDS[VERDICTS[text]]
            seen[kind] += 1
            assert verdict.verdict == kind
            assert episode.experience == {"reject": None, "refine": "win"}.get(kind, text) == verdict.text
            assert episode.guided == (kind != "reject")
            assert episode.entry_ids == ([verdict.entry_id] if episode.guided else [])
        generations = {row.generation_id: row for row in critiqued.rows(Generation, "critique", number)}
        assert set(generations) == {row.generation_id for row in verdicts.values()}
        assert {row.kind for row in generations.values()} <= {"critic"}
    assert set(seen) == set(KINDS.values()), "the run shows every verdict"


def test_the_success_rate_is_that_of_all_earlier_rounds(critiqued: Played) -> None:
    won: list[bool] = []
    for number in range(1, ROUNDS + 1):
        rates = critiqued.rows(SuccessRate, "critique", number)
        assert [(row.episodes, row.successes) for row in rates] == ([(len(won), sum(won))] if won else [])
        told = {row.success_rate for row in critiqued.rows(Critique, "critique", number)}
        assert told <= {np.mean(won)} if won else not told
        won += [row.success for row in critiqued.rows(Episode, "collect", number)]
    generation = critiqued.rows(Generation, "critique", ROUNDS)[0]
    assert f" at {critiqued.rows(Critique, 'critique', ROUNDS)[0].success_rate:.1f}" in generation.prompt


def test_a_use_earns_the_verdict_and_the_difference_to_its_free_twins(critiqued: Played) -> None:
    earned: dict[str, list[float]] = defaultdict(list)
    rejected = 0
    for number in range(1, ROUNDS + 1):
        episodes = {row.episode_id: row for row in critiqued.rows(Episode, "collect", number)}
        verdicts = {row.episode_id: row for row in critiqued.rows(Critique, "critique", number)}
        chosen = {row.episode_id: row for row in critiqued.rows(Retrieval, "plan", number) if row.chosen}
        rewards = {row.episode_id: row for row in critiqued.rows(UseReward, "credit", number)}
        assert set(rewards) == set(verdicts)
        assert {row.episode_id for row in critiqued.rows(Credit, "credit", number)} == {
            name for name, row in verdicts.items() if row.verdict != "reject"
        }
        for name, row in rewards.items():
            verdict, mine = verdicts[name], episodes[name]
            expected = {"accept": 1.0, "refine": 0.5}.get(verdict.verdict, 0.0)
            rejected += verdict.verdict == "reject"
            if verdict.verdict != "reject":
                twins = [each.success for each in episodes.values() if each.group == mine.group and not each.guided]
                expected += (2 * mine.success - 1) - (2 * float(np.mean(twins)) - 1)
            assert row.reward == pytest.approx(expected)
            assert row.generation_id == chosen[name].generation_id
            earned[row.generation_id].append(row.reward)
    assert rejected and earned
    # Whatever was selected on the way was trained on; the rest stands in the last buffer. Nothing is lost.
    samples = [row for number in range(1, ROUNDS + 1) for row in critiqued.rows(Sample, "credit", number)
               if row.objective == "cispo"]  # fmt: skip
    waiting = [row for row in critiqued.rows(BufferItem, "credit", ROUNDS) if row.status == "waiting"]
    in_buffer = sum(row.score_sum for row in waiting)
    trained = sum(
        row.score_sum
        for number in range(1, ROUNDS + 1)
        for row in critiqued.rows(BufferItem, "credit", number)
        if row.status == "selected"
    )
    assert samples and in_buffer + trained == pytest.approx(sum(map(sum, earned.values())))


def test_guided_episodes_that_beat_their_free_twins_are_distilled_in_rounds_where_it_is_due(critiqued: Played) -> None:
    for number in range(1, ROUNDS + 1):
        taught = [row for row in critiqued.rows(Sample, "credit", number) if row.objective == "nll"]
        episodes = critiqued.rows(Episode, "collect", number)
        contexts = {row.generation_id: row for row in critiqued.rows(StrippedContext, "collect", number)}
        if number % 2:
            assert taught == []
            continue
        better = [
            row.generation_ids[0]
            for row in episodes
            if row.guided
            and row.reward > np.mean([each.reward for each in episodes if each.group == row.group and not each.guided])
        ]
        assert better and [row.generation_id for row in taught] == better
        assert all(row.token_ids == contexts[row.generation_id].token_ids for row in taught)
        assert {row.weight for row in taught} == {0.5}
        metrics = {row.name: row.value for row in critiqued.rows(Metric, "credit", number)}
        assert metrics["self_distilled"] == len(better)
    batches = critiqued.services.trainers["actor"].batches
    assert [Counter(row.objective for row in batch)["nll"] > 0 for batch in batches] == [False, True, False]


def test_evaluation_with_the_bank_judges_as_well(critiqued: Played) -> None:
    rows = critiqued.rows(Evaluation, "evaluate", ROUNDS)
    bank = recorded_bank(critiqued.run, critiqued.recipe, ROUNDS)
    texts = load_texts(critiqued.run.path, bank.table)
    shown = {entry.entry_id: texts[entry.content_digest] for entry in bank.entries()}
    guided = [row for row in rows if row.guided]
    assert guided and all(row.condition == "with_bank" for row in guided)
    assert "lose" not in {shown[row.entry_ids[0]] for row in guided}, "what is rejected guides nobody"
    for row in guided:
        assert row.success == (shown[row.entry_ids[0]] in ("win", "vague")), "what is refined is played as rewritten"
        # A character is a token here; an answer has one more, its end.
        wrote = [*row.actions, VERDICTS[shown[row.entry_ids[0]]]]
        assert row.tokens_sampled == sum(len(each) + 1 for each in wrote), "the verdict is part of what a game takes"
        assert row.tokens_read > 300, "with the prompt of the verdict"


def test_a_run_with_every_mechanism_verifies(critiqued: Played) -> None:
    assert problems_of(critiqued.run, critiqued.recipe) == []
    assert [stage.name for stage in critiqued.recipe.stages_of(critiqued.method, 1)][:3] == [
        "plan",
        "critique",
        "collect",
    ]


@pytest.fixture(scope="module")
def offline(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """A bank of four entries built in round 1; what they come to be worth is kept."""
    made = experiment(
        method__recipe__kind="offline_bank",
        method__recipe__warm_up_rounds=1,
        method__recipe__bank__capacity=4,
        method__recipe__extractor_objective__credit="running_usefulness",
        method__recipe__extractor_objective__usefulness_decay=0.5,
        method__evaluation__every=0,
    )
    return Played(tmp_path_factory.mktemp("offline"), made, ROUNDS)


def test_an_offline_bank_stands_still_after_its_warm_up(offline: Played) -> None:
    snapshots = [offline.rows(BankSnapshot, "consolidate", number)[0] for number in range(1, ROUNDS + 1)]
    assert snapshots[0].entries == 4 and {row.digest for row in snapshots} == {snapshots[0].digest}
    assert [row.changed + row.removed > 0 for row in snapshots] == [True, False, False]
    objectives = [{row.objective for row in offline.rows(Sample, "credit", number)} for number in range(1, ROUNDS + 1)]
    assert objectives == [set(), {"grpo"}, {"grpo"}]
    assert any(row.guided for row in offline.rows(Episode, "collect", 2))
    assert offline.services.trainers["extractor"].batches == []
    assert problems_of(offline.run, offline.recipe) == []


def test_running_usefulness_is_carried_from_round_to_round(offline: Played) -> None:
    outcomes: dict[str, list[float]] = defaultdict(list)
    used_in: dict[str, set[int]] = defaultdict(set)
    for number in range(1, ROUNDS + 1):
        rewards = {row.episode_id: row for row in offline.rows(UseReward, "credit", number)}
        for credit in offline.rows(Credit, "credit", number):
            past = outcomes[credit.entry_id]
            past.append(credit.outcome)
            used_in[credit.entry_id].add(number)
            weights = 0.5 ** np.arange(len(past))[::-1]
            assert rewards[credit.episode_id].reward == pytest.approx(weights @ np.array(past) / weights.sum())
        kept = {row.entry_id: row.uses for row in offline.rows(EntryUsefulness, "credit", number)}
        assert kept == {name: len(past) for name, past in outcomes.items()}
    assert max(map(len, used_in.values())) == 2, "an entry was used in both rounds that had a bank"


def test_with_every_switch_off_nothing_of_them_is_there(tmp_path: Path) -> None:
    played = Played(tmp_path, experiment(method__evaluation__every=0), 1)
    assert [stage.name for stage in played.recipe.stages_of(played.method, 2)][:2] == ["plan", "collect"]
    assert played.tables(1, "collect") == {"episodes", "turns", "generations"}
    assert played.tables(1, "credit") == {"credits", "entry_scores", "buffer", "samples", "metrics"}
    names = {row.name for row in played.rows(Metric, "credit", 1)}
    assert not any(name.startswith(("verdict", "self_distilled", "uses_without")) for name in names)
