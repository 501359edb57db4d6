"""Effects of texts, credit by other tasks and by trend, and trials' rewards, against plain arithmetic over lists."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np
import pytest

from crl.config import SuppressConfig, TrialConfig
from crl.credit.buffer import SCORED
from crl.credit.rules import TaskKey
from crl.credit.rules.other_tasks import OWN_TASK
from crl.recipes.complementary.mechanisms.suppression import text_effects, texts_by_family
from crl.recipes.complementary.mechanisms.trial import Asked, TextKey, result_of, to_try, trial_rewards, trials_of
from crl.records import CandidateUtility, Credit, Distillation, Episode, Operation, Retrieval, TextEffect
from tests.unit.credit.scoring import scored, use_of


def episode(name: str, *, success: bool, family: str = "room", seed: int = 0, guided: bool = False, group: int = 0,
            broke: bool = False) -> Episode:  # fmt: skip
    return Episode(
        episode_id=name, round=1, family=family, group=group, member=0, environment_seed=seed, guided=guided,
        entry_ids=["e"] if guided else [], content_digests=["d"] if guided else [], experiences=["t"] if guided else [],
        goal="", success=success, reward=float(success), turns=1, invalid_actions=0, tokens_read=1, tokens_sampled=1,
        stop_reason="error" if broke else "success" if success else "failure", last_observation="",
        error="broke" if broke else None, generation_ids=[f"g-{name}"],
    )  # fmt: skip


def credit(name: str, text: str, difference: float | None) -> Credit:
    return Credit(
        round=1, episode_id=name, entry_id=f"entry-{text}", content_digest=text, generation_id=f"w-{text}", outcome=1.0,
        free_mean=None if difference is None else 1.0 - difference, guided_minus_free=difference,
    )  # fmt: skip


@pytest.mark.parametrize("decay", [1.0, 0.8])
def test_the_effect_is_the_weighted_mean_of_all_uses_and_the_bound_is_theirs(decay: float) -> None:
    rng, config = np.random.default_rng(7), SuppressConfig(min_uses=4, max_effect=0.1, standard_errors=1.3, decay=decay)
    kept: list[TextEffect] = []
    values: dict[tuple[str, str], list[tuple[int, float]]] = defaultdict(list)
    seen = set()
    for number in range(12):
        credits, families = [], {}
        for use in range(int(rng.integers(0, 9))):
            name, text, family = f"r{number}-{use}", str(rng.choice(["a", "b"])), str(rng.choice(["room", "hall"]))
            difference = float(rng.normal(-0.8 if text == "a" else 0.4, 0.5)) if rng.random() < 0.9 else None
            credits.append(credit(name, text, difference))
            families[name] = family
            if difference is not None:
                values[family, text].append((number, difference))
        kept = text_effects(kept, credits, families, config)
        assert [(row.family, row.content_digest) for row in kept] == sorted(values)
        for row in kept:
            listed = values[row.family, row.content_digest]
            weights = np.array([decay ** (number - then) for then, _ in listed])
            found = np.array([value for _, value in listed])
            mean = float(weights @ found / weights.sum())
            spread = float(weights @ (found - mean) ** 2)
            assert (row.count, row.mean, row.spread) == pytest.approx((weights.sum(), mean, spread), abs=1e-9)
            upper = mean + 1.3 * math.sqrt((spread + 1) / weights.sum() / weights.sum())
            assert row.suppressed == (weights.sum() >= 4 and upper < 0.1)
            seen.add((row.content_digest, row.suppressed))
        masked = texts_by_family(row for row in kept if row.suppressed)
        assert {(family, text) for family, texts in masked.items() for text in texts} == {
            (row.family, row.content_digest) for row in kept if row.suppressed
        }
    assert ("a", True) in seen and ("b", False) in seen and ("b", True) not in seen


def test_other_tasks_count_once_each_and_the_own_one_never() -> None:
    rng = np.random.default_rng(3)
    own = {"x0": TaskKey("room", 0), "x1": TaskKey("hall", 1)}  # x2 is a merge: it has no task of its own
    tasks, uses = {}, []
    expected: dict[tuple[str, TaskKey], list[float]] = defaultdict(list)
    for number in range(60):
        task, writer = TaskKey(str(rng.choice(["room", "hall"])), int(rng.integers(0, 3))), f"x{rng.integers(0, 3)}"
        name, earned = f"r{number}", float(rng.choice([-1.0, 1.0]))
        tasks[name] = task
        uses.append(use_of(writer, earned, name))
        if own.get(writer) != task:
            expected[writer, task].append(earned)
    played = [episode(name, success=True, family=task.family, seed=task.level)
              for name, task in tasks.items()]  # fmt: skip
    found = scored("other_tasks", uses, episodes=played, own=own)
    assert [row.episode_id for row in found.uses] == [each.episode_id for each in uses], "every use keeps its row"
    assert all((row.basis == OWN_TASK) == (own.get(row.generation_id) == tasks[row.episode_id]) for row in found.uses)
    means = [(writer, sum(listed) / len(listed)) for (writer, _), listed in expected.items()]
    assert [(each.generation_id, each.reward) for each in found.earned] == means
    assert any(row.basis == OWN_TASK for row in found.uses) and len(means) < len(uses)


def candidate(episode_id: str, entry_id: str) -> Retrieval:
    return Retrieval(
        episode_id=episode_id, round=1, bank_round=0, family="room", entry_id=entry_id, content_digest="d",
        generation_id="w", rank=0, similarity=1.0, rank_score=0.0, count=0, recent=False, score=0.0, chosen=False,
    )  # fmt: skip


def distillation(episode_id: str, verdict: str = "add") -> Distillation:
    return Distillation(
        distillation_id=f"d-{episode_id}", round=1, kind="distill", family="room", episode_id=episode_id,
        guiding_entry_id=None, source_entry_ids=[], generation_id=f"x-{episode_id}", format="lines",
        reason_code="ok" if verdict != "malformed" else "empty", verdict=verdict, operations=1, turns=1, turns_shown=1,
    )  # fmt: skip


def test_every_candidate_moves_toward_the_outcome_and_an_output_earns_what_exceeds_the_best() -> None:
    rng = np.random.default_rng(11)
    utility: dict[str, float] = {}
    kept: list[CandidateUtility] = []
    for _ in range(6):
        episodes, retrievals = [], []
        for number in range(12):
            played = episode(
                f"r{number}", success=bool(rng.random() < 0.5), group=number // 4, guided=number % 2 == 0,
                broke=rng.random() < 0.1,
            )  # fmt: skip
            episodes.append(played)
            if played.guided and played.group:  # nothing is retrieved for the first group
                names = rng.choice(["a", "b", "c", "d"], size=2, replace=False)
                retrievals += [candidate(played.episode_id, str(name)) for name in names]
        outputs = [distillation(each.episode_id, "return" if place == 7 else "add")
                   for place, each in enumerate(episodes)]  # fmt: skip
        told = scored("trend", before=kept, episodes=episodes, retrievals=retrievals, distilled=outputs)
        assert {each.kind for each in told.earned} == {SCORED}
        found = {each.generation_id: each.reward for each in told.earned}
        group_of = {each.episode_id: each.group for each in episodes}
        for each in episodes:
            listed = [utility.get(row.entry_id, 0.0) for row in retrievals if group_of[row.episode_id] == each.group]
            if each.error is not None or each is episodes[7]:
                assert f"x-{each.episode_id}" not in found
                continue
            assert found[f"x-{each.episode_id}"] == pytest.approx((2 * each.success - 1) - max(listed, default=0.0))
        for each in episodes:
            for row in retrievals:
                if row.episode_id == each.episode_id and each.error is None:
                    utility[row.entry_id] = 0.95 * utility.get(row.entry_id, 0.0) + 0.05 * (2 * each.success - 1)
        kept = list(told.after)
        assert {row.entry_id: row.utility for row in kept} == pytest.approx(utility)


def operation(name: str, text: str, family: str = "room") -> Operation:
    return Operation(
        operation_id=f"{name}-o0", distillation_id=name, generation_id=f"x-{name}", round=1, index=0, kind="add",
        family=family, entry_id=f"e-{name}", parents=[], episode_ids=[], text=text, embedder_cut=False,
    )  # fmt: skip


def asked(name: str, text: str, *, won: bool = False, possible: bool = True) -> Asked:
    return Asked(operation(name, text), TextKey("room", text), possible, won)


def test_the_difference_of_usable_pairs_admits_a_text_and_pays_everyone_who_wrote_it() -> None:
    rng, config = np.random.default_rng(2), TrialConfig(layouts=8, threshold=0.2)
    listed = [asked("n0", "a"), asked("n1", "b"), asked("n2", "a", possible=False), asked("n3", "c", possible=False)]
    results, expected = {}, {}
    for text, chance in (("a", 0.9), ("b", 0.1)):
        pairs = [
            (episode(f"{text}{n}", success=bool(rng.random() < chance), guided=True, broke=n == 1),
             episode(f"f{n}", success=bool(rng.random() < 0.2), broke=n == 2))
            for n in range(8)
        ]  # fmt: skip
        counted = [pair for n, pair in enumerate(pairs) if n not in (1, 2)]
        expected[text] = float(np.mean([int(one.success) - int(other.success) for one, other in counted]))
        results[TextKey("room", text)] = result_of(TextKey("room", text), pairs, round=1)
    rows = {row.operation_id: row for row in trials_of(listed, results, config, round=1)}
    assert set(rows) == {"n0-o0", "n1-o0", "n2-o0"}, "what the bank would reject has a row where its text was tried"
    for name, text in (("n0", "a"), ("n1", "b"), ("n2", "a")):
        row = rows[f"{name}-o0"]
        assert row.pairs == 6 and row.difference == pytest.approx(expected[text])
        assert row.admitted == (expected[text] >= 0.2)
    assert rows["n0-o0"].admitted and not rows["n1-o0"].admitted
    assert trial_rewards(rows.values()) == pytest.approx(
        {"x-n0": 2 * expected["a"], "x-n1": 2 * expected["b"], "x-n2": 2 * expected["a"]}
    )


@pytest.mark.parametrize(("broken", "counted"), [(4, 4), (5, 0), (7, 0), (8, 0)])
def test_few_pairs_that_are_left_say_nothing(broken: int, counted: int) -> None:
    pairs = [(episode(f"a{n}", success=True, guided=True, broke=n < broken), episode(f"f{n}", success=False))
             for n in range(8)]  # fmt: skip
    result = result_of(TextKey("room", "a"), pairs, round=1)
    (row,) = trials_of([asked("n0", "a")], {TextKey("room", "a"): result}, TrialConfig(layouts=8), round=1)
    assert (row.pairs, row.admitted, row.reason_code) == (counted, counted > 0, "ok" if counted else "untried")
    assert row.difference == (1.0 if counted else None)


def test_texts_of_won_episodes_are_tried_first_and_known_ones_not_at_all() -> None:
    listed = [asked("n0", "a"), asked("n1", "b", won=True), asked("n2", "c"), asked("n3", "c"), asked("n4", "d"),
              asked("n5", "e", won=True), asked("n6", "e", won=True), asked("n7", "f", possible=False)]  # fmt: skip
    every = to_try(listed, {TextKey("room", "d")}, TrialConfig())
    assert [each.key.content_digest for each in every["room"]] == ["e", "b", "c", "a"]
    few = to_try(listed, set(), TrialConfig(max_experiences=2))
    assert [each.operation.distillation_id for each in few["room"]] == ["n5", "n1"]


def test_a_verdict_is_earned_on_the_own_task_too() -> None:
    played = [episode(f"r{number}", success=True, seed=number % 2) for number in range(3)]
    uses = [use_of("x", 1.0, "r0", score=0.5), use_of("x", -1.0, "r1", score=1.0), use_of("x", None, "r2", score=0.0)]
    found = scored("other_tasks", uses, episodes=played, own={"x": TaskKey("room", 0)})
    assert [row.reward for row in found.uses] == [0.5, 0.0, 0.0]
    assert [each.reward for each in found.earned] == [0.25, 0.0], "the mean of what the rows say, by task"
