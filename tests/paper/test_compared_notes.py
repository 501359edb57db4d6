"""Outputs about one episode, compared by the games that their texts guide, against arithmetic written apart from the
code: advantages within the episode (Learning to Coach, 2609.15851), the one that enters the bank, the batches.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from crl.config import ExtractorObjective, TrialConfig
from crl.credit.buffer import SCORED, Earned, Output, fill_buffer
from crl.credit.samples import cispo_samples, output_advantages, select_batches
from crl.recipes.complementary.mechanisms.trial import Asked, TextKey, compared, trial_rewards, trials_of
from crl.records import BufferItem, Distillation, Generation, Operation, TrialResult

PAIRS, THRESHOLD = 6, 0.25
CONFIG = TrialConfig(layouts=PAIRS, threshold=THRESHOLD, reuse_rounds=0)
TEXTS = "abcdef"

Episodes = list[list[list[str]]]
"""By episode, by output, the texts it writes; none: it is malformed."""
Wins = dict[str, int | None]
"""By text, pairs won with it; None: it was not tried, or nothing is left of its pairs."""

EPISODES = st.lists(
    st.lists(st.lists(st.sampled_from(TEXTS), max_size=2, unique=True), min_size=1, max_size=4), min_size=1, max_size=5
)
WINS = st.fixed_dictionaries({text: st.none() | st.integers(0, PAIRS) for text in TEXTS})


def distillation(episode: int, number: int, texts: list[str]) -> Distillation:
    name = f"d-e{episode}" + (f"-n{number}" if number else "")
    return Distillation(
        distillation_id=name, round=1, kind="distill", family="room", episode_id=f"e{episode}", guiding_entry_id=None,
        source_entry_ids=[], generation_id=f"g-{name}", format="lines",
        reason_code="ok" if texts else "bad_line", verdict="add" if texts else "malformed", operations=len(texts),
        turns=1, turns_shown=1, candidate=number,
    )  # fmt: skip


def asked(output: Distillation, place: int, text: str) -> Asked:
    operation = Operation(
        operation_id=f"{output.distillation_id}-o{place}", distillation_id=output.distillation_id,
        generation_id=output.generation_id, round=1, index=place, kind="add", family="room",
        entry_id=f"x-{output.distillation_id}-o{place}", parents=[], episode_ids=[str(output.episode_id)], text=text,
        embedder_cut=False,
    )  # fmt: skip
    return Asked(operation, TextKey("room", text), possible=True, won=False)


def result(text: str, wins: int | None, free: int) -> TrialResult:
    return TrialResult(
        family="room", content_digest=text, round=1, pairs=0 if wins is None else PAIRS, wins_with=wins or 0,
        wins_without=0 if wins is None else free,
    )  # fmt: skip


def made(episodes: Episodes, wins: Wins, free: int) -> tuple[list[Distillation], list[Asked], list[Any]]:
    outputs = [distillation(e, n, texts) for e, each in enumerate(episodes) for n, texts in enumerate(each)]
    written = [texts for each in episodes for texts in each]
    listed = [
        asked(output, place, text)
        for output, texts in zip(outputs, written, strict=True)
        for place, text in enumerate(texts)
    ]
    results = {TextKey("room", text): result(text, won, free) for text, won in wins.items()}
    return outputs, listed, trials_of(listed, results, CONFIG, round=1)


def share(texts: list[str], wins: Wins, free: int) -> float | None:
    """The mean difference of an output's tried texts, in float64."""
    tried = [w for w in (wins[text] for text in texts) if w is not None]
    return math.fsum(w / PAIRS - free / PAIRS for w in tried) / len(tried) if tried else None


@settings(max_examples=200, deadline=None)
@given(EPISODES, WINS, st.integers(0, PAIRS))
def test_an_advantage_is_that_among_the_tried_outputs_of_the_episode(episodes: Episodes, wins: Wins, free: int) -> None:
    outputs, _, trials = made(episodes, wins, free)
    found = compared(trial_rewards(trials), outputs)
    expected: dict[str, tuple[str, float]] = {}
    for e, each in enumerate(episodes):
        values = [(n, share(texts, wins, free)) for n, texts in enumerate(each)]
        tried = [(n, 2 * value) for n, value in values if value is not None]
        if len(tried) < 2:
            continue  # nothing to compare it with: eq. 3 and its batch
        mean = math.fsum(value for _, value in tried) / len(tried)
        deviation = math.sqrt(math.fsum((value - mean) ** 2 for _, value in tried) / len(tried))
        for n, value in tried:
            advantage = (value - mean) / deviation if deviation > 1e-6 else 0.0
            expected[distillation(e, n, each[n]).generation_id] = (f"e{e}", advantage)
    assert found.keys() == expected.keys()
    for name, (episode_id, advantage) in expected.items():
        assert found[name][0] == episode_id and found[name][1] == pytest.approx(advantage, abs=1e-9)
    for episode_id in {episode_id for episode_id, _ in found.values()}:
        group = [advantage for other, advantage in found.values() if other == episode_id]
        assert math.fsum(group) == pytest.approx(0, abs=1e-9)
        assert math.fsum(a * a for a in group) == pytest.approx(len(group), abs=1e-6) or not any(group)


@settings(max_examples=200, deadline=None)
@given(EPISODES, WINS, st.integers(0, PAIRS))
def test_the_best_output_of_an_episode_alone_may_change_the_bank_and_the_first_of_equals(
    episodes: Episodes, wins: Wins, free: int
) -> None:
    _, listed, trials = made(episodes, wins, free)
    best = {}
    for number, each in enumerate(episodes):
        top: tuple[float, list[str]] | None = None
        for texts in each:
            value = share(texts, wins, free)
            if value is not None and (top is None or value > top[0] + 1e-12):
                top = (value, texts)
        best[f"e{number}"] = set(top[1]) if top is not None else set()
    for one, row in zip(listed, trials, strict=True):
        won = wins[one.key.content_digest]
        passed = won is not None and won / PAIRS - free / PAIRS >= THRESHOLD
        reason = "untried" if won is None else "failed_trial" if not passed else None
        (episode_id,) = one.operation.episode_ids
        assert row.reason_code == (reason or ("ok" if one.key.content_digest in best[episode_id] else "outdone"))
        assert row.admitted == (row.reason_code == "ok")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(TEXTS), max_size=2, unique=True), min_size=1, max_size=8), WINS)
def test_one_output_per_episode_is_what_a_trial_was_without_comparison(written: list[list[str]], wins: Wins) -> None:
    outputs, _, trials = made([[texts] for texts in written], wins, 2)
    assert compared(trial_rewards(trials), outputs) == {}
    assert {row.reason_code for row in trials} <= {"ok", "failed_trial", "untried"}
    assert all(row.admitted == (row.difference is not None and row.difference >= THRESHOLD) for row in trials)


def test_all_equal_have_none_and_one_alone_is_compared_with_its_batch() -> None:
    wins: Wins = {"a": 5, "b": 5, "c": 1, "d": None, "e": 3, "f": 0}
    outputs, _, trials = made([[["a"], ["b"], ["a"]], [["c"], ["d"], []], [["e"], ["f"]]], wins, 2)
    found = compared(trial_rewards(trials), outputs)
    assert {name: advantage for name, (_, advantage) in found.items()} == {
        "g-d-e0": 0, "g-d-e0-n1": 0, "g-d-e0-n2": 0, "g-d-e2": 1, "g-d-e2-n1": -1,
    }  # fmt: skip


# -- the buffer and the samples --------------------------------------------------------------------------------------


def item(name: str, reward: float, advantage: float | None = None, kind: str = SCORED) -> BufferItem:
    return BufferItem(
        generation_id=name, generation_round=1, generation_stage="distill", kind=kind, entered_round=1,
        entered_order=int(name[1:]), uses=1, score_sum=reward, train_count=0, last_trained_round=None,
        status="waiting", reason=None, compared_in=None if advantage is None else "e", advantage=advantage,
    )  # fmt: skip


def test_the_buffer_carries_the_episode_that_an_output_is_compared_in() -> None:
    earned = [Earned("g1", 0.5, SCORED, "e1", 1.0), Earned("g2", -0.5, SCORED, "e1", -1.0), Earned("g3", 0.25, SCORED)]
    outputs = [Output(f"g{n}", (4, "distill")) for n in (1, 2, 3, 4)]
    rows = fill_buffer([], outputs, earned, None, round=4)
    assert [(row.generation_id, row.compared_in, row.advantage) for row in rows] == [
        ("g1", "e1", 1.0), ("g2", "e1", -1.0), ("g3", None, None),
    ]  # fmt: skip
    assert fill_buffer(rows, [], [], set(), round=5) == rows, "they wait with it until they are trained"


def test_a_sample_has_the_advantage_of_its_episode_and_others_that_of_eq_3() -> None:
    batch = [item("g0", 1.0, 1.5), item("g1", -1.0, -0.5), item("g2", 0.5), item("g3", -2.0, kind="malformed")]
    generations = {
        each.generation_id: Generation(
            generation_id=each.generation_id, round=1, stage="distill", role="extractor", kind="distill",
            weights_digest="0" * 64, temperature=1.0, prompt="p", output="o", stop_reason="end_of_turn",
            token_ids=[1, 2], loss_mask=[0, 1], logprobs=[0.0, -1.0],
        )
        for each in batch
    }  # fmt: skip
    config = ExtractorObjective(batch=4)
    samples = cispo_samples([batch], generations, config, round=1)
    baseline = (1.0 - 1.0 + 0.5) / 3  # the malformed one aside
    assert [each.advantage for each in samples] == pytest.approx([1.5, -0.5, 0.5 - baseline, -2.0 - baseline])
    assert [each.reward for each in samples] == [1.0, -1.0, 0.5, -2.0]


ITEMS = st.lists(
    st.tuples(st.sampled_from([-1.0, 0.0, 0.5]), st.sampled_from([None, None, -1.0, 0.0, 1.0])), max_size=12
)


@settings(max_examples=300, deadline=None)
@given(ITEMS, st.integers(2, 4))
# The second batch has no advantage unless one of its items is in it twice.
@example([(-1.0, None)] * 3 + [(-1.0, 0.0)] + [(0.0, None)] * 2 + [(0.5, 0.0)] * 2, 4)
def test_no_batch_is_trained_that_has_no_advantage_and_none_waits_that_has_one(
    rows: list[tuple[float, float | None]], size: int
) -> None:
    config = ExtractorObjective(batch=size)
    buffer = [item(f"g{n}", reward, advantage) for n, (reward, advantage) in enumerate(rows)]
    batches, after = select_batches(buffer, config, round=1)
    assert all(len(batch) == size for batch in batches)
    for batch in batches:
        assert any(abs(value) > 1e-12 for value in output_advantages(batch, config))
    left = [row for row in after if row.status == "waiting"]
    assert len(left) + size * len(batches) == len(buffer)
    if len(left) >= size:
        assert not any(row.advantage for row in left), "what has an advantage in its episode is trained"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from([-1.0, 0.0, 0.5]), max_size=12), st.integers(2, 4))
def test_batches_of_outputs_that_nothing_compares_are_taken_as_before(rewards: list[float], size: int) -> None:
    """By the rule in words: the oldest; of equal rewards the last place goes to the oldest with another one."""
    left, expected = list(enumerate(rewards)), []
    while len(left) >= size:
        batch = left[:size]
        if len({reward for _, reward in batch}) == 1:
            others = [each for each in left if each[1] != batch[0][1]]
            if not others:
                break
            batch = [*batch[:-1], others[0]]
        expected.append([f"g{n}" for n, _ in batch])
        left = [each for each in left if each not in batch]
    buffer = [item(f"g{n}", reward) for n, reward in enumerate(rewards)]
    batches, _ = select_batches(buffer, ExtractorObjective(batch=size), round=1)
    assert [[row.generation_id for row in batch] for batch in batches] == expected
