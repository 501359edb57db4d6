"""Admission by trial in whole rounds: matched pairs decide what enters the bank, and pay who wrote it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from crl.audit.audit import problems_of, trial_problems
from crl.bank.segments import text_digest
from crl.config import Experiment, Method, TrialConfig
from crl.recipes.complementary.mechanisms.trial import Asked, TextKey, in_force, trials_of
from crl.records import (
    TRIAL,
    BankEvent,
    BufferItem,
    Credit,
    Episode,
    Generation,
    Metric,
    Operation,
    Row,
    Sample,
    Trial,
    TrialResult,
    rows_of,
    table_of,
)
from crl.report.views import query
from crl.report.why import why
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.rounds.stage import Recipe
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.unit.recipes.played import VERDICTS, Played, Policy, Services, Session, act, experiment, one_by_one
from tests.unit.recipes.test_overlap import second_track_late

ROUNDS, LAYOUTS = 3, 4
FEW = {"method__families__0__train_seeds__count": 64, "method__evaluation__every": 0}


class Seeing(Policy):
    """An actor that remembers how often a trial gave it a sampling stream, by round."""

    def __init__(self) -> None:
        super().__init__(act)
        self.seeds: dict[int, Counter[int]] = defaultdict(Counter)
        self.place = (0, "")

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> Session:
        if self.place[1] == TRIAL:
            self.seeds[self.place[0]].update(seeds)
        return super().open(prompts, seeds, limit)


class Watching(Services):
    """Services with such an actor."""

    def __init__(self, made: Experiment) -> None:
        super().__init__(made)
        self.actor = Seeing()
        self._policies["actor"] = self.actor

    def order(self, recipe: Recipe, method: Method, rounds: int) -> Iterator[tuple[int, str]]:
        for self.actor.place in one_by_one(recipe, method, rounds):
            yield self.actor.place


def played(root: Path, rounds: int = ROUNDS, **changes: object) -> Played:
    trial = {"layouts": LAYOUTS, "threshold": 0.25, **changes.pop("trial", {})}  # type: ignore[dict-item]
    made = experiment(method__recipe__trial=trial, **{**FEW, **changes})
    services = Watching(made)
    return Played(root, made, rounds, services, services.order)


@pytest.fixture(scope="module")
def tried(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("tried"), trial={"reuse_rounds": 1})


def pairs_of(run: Played, number: int) -> dict[str, list[tuple[Episode, Episode]]]:
    """By text: (with, without), put together by hand."""
    episodes = run.rows(Episode, TRIAL, number)
    free = {each.environment_seed: each for each in episodes if not each.guided}
    found = defaultdict(list)
    for each in episodes:
        if each.guided:
            found[each.content_digests[0]].append((each, free[each.environment_seed]))
    return found


def test_every_new_text_is_played_in_matched_pairs_and_the_difference_decides(tried: Played) -> None:
    seen = set()
    for number in range(1, ROUNDS + 1):
        texts = {row.operation_id: row for row in tried.rows(Operation, "distill", number)}
        pairs = pairs_of(tried, number)
        rows = tried.rows(Trial, TRIAL, number)
        assert {row.operation_id for row in rows} == set(texts), "every operation of these rounds writes a text"
        for row in rows:
            text = texts[row.operation_id].text or ""
            assert row.content_digest == text_digest(text)
            if row.tried_round != number:
                assert row.tried_round == number - 1, "a result holds one round"
                continue
            mine = pairs[row.content_digest]
            assert len(mine) == row.pairs == LAYOUTS
            expected = np.mean([with_.success for with_, _ in mine]) - np.mean([free.success for _, free in mine])
            assert row.difference == pytest.approx(expected)
            assert row.admitted == (expected >= 0.25) == (text == "win" and expected >= 0.25)
            seen.add((text, row.admitted))
    assert ("win", True) in seen and {text for text, admitted in seen if not admitted} >= set(VERDICTS) - {"win"}


def test_a_pair_has_one_layout_and_one_sampling_stream(tried: Played) -> None:
    for number in (1, 3):  # in round 2 the results of the first hold
        collected = {row.environment_seed for row in tried.rows(Episode, "collect", number)}
        episodes = tried.rows(Episode, TRIAL, number)
        assert {row.stream for row in episodes} == {TRIAL}
        seeds = {row.environment_seed for row in episodes}
        assert len(seeds) == LAYOUTS and not seeds & collected and max(seeds) < 64, (
            "training layouts, none of the round"
        )
        played_by = {row.weights_digest for row in tried.rows(Generation, TRIAL, number)}
        assert played_by == {row.weights_digest for row in tried.rows(Generation, "collect", number)}
        texts = len({tuple(row.content_digests) for row in episodes})
        streams = tried.services.actor.seeds[number]
        assert len(streams) == LAYOUTS and set(streams.values()) == {texts}, (
            "each experience, and none, has the layout's stream"
        )


def test_games_of_a_trial_are_counted_in_estimates(tried: Played) -> None:
    method = tried.method
    for number in range(1, ROUNDS + 1):
        games = sum(len(tried.rows(Episode, stage, number)) for stage in ("collect", TRIAL))
        assert method.episodes <= games <= method.recipe.outputs(method)["actor"]
        assert games > method.episodes or number > 1  # results of the first round hold in the second


def test_what_fails_stays_out_of_the_bank_and_says_why(tried: Played) -> None:
    for number in range(1, ROUNDS + 1):
        events = {row.operation_id: row for row in tried.rows(BankEvent, "consolidate", number) if row.operation_id}
        for row in tried.rows(Trial, TRIAL, number):
            event = events[row.operation_id]
            assert (event.kind == "add") == row.admitted
            assert row.admitted or (event.kind, event.reason) == ("rejected", "failed_trial")
    bank = recorded_bank(tried.run, tried.recipe, ROUNDS)
    assert len(bank) and set(bank.table["content_digest"].to_pylist()) == {text_digest("win")}
    assert problems_of(tried.run, tried.recipe) == []


def test_a_bank_that_did_not_keep_to_its_trials_is_a_problem(tried: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held against trials that kept out what came in: the bank is then one that no trial allowed."""
    read = RunDirectory.read

    def turned(run: RunDirectory, number: int, stage: str, row_type: type[Row]) -> pa.Table:
        table = read(run, number, stage, row_type)
        if row_type is not Trial or number != 2:
            return table
        rows = [dataclasses.replace(row, admitted=False, reason_code="untried") for row in rows_of(Trial, table)]
        return table_of(Trial, rows)

    monkeypatch.setattr(RunDirectory, "read", turned)
    problems = trial_problems(tried.run, tried.recipe)
    assert [(each.round, each.stage) for each in problems] == [(2, "consolidate")]
    assert "rejected: untried, as its trial says" in problems[0].expected and "0002/consolidate" in problems[0].file


def test_the_difference_pays_the_writer_instead_of_uses(tried: Played) -> None:
    trained: dict[str, float] = {}
    expected = {
        row.generation_id: 2 * (row.difference or 0.0)
        for number in range(1, ROUNDS + 1)
        for row in tried.rows(Trial, TRIAL, number)
    }
    assert any(tried.rows(Credit, "credit", number) for number in range(2, ROUNDS + 1)), "experiences guided episodes"
    for number in range(1, ROUNDS + 1):
        for row in tried.rows(Sample, "credit", number):
            if row.objective == "cispo":
                assert row.generation_id not in trained, "an output is trained once"
                trained[row.generation_id] = row.reward
    waiting = {row.generation_id: row for row in tried.rows(BufferItem, "credit", ROUNDS) if row.status == "waiting"}
    assert trained and {row.kind for row in waiting.values()} <= {"scored"}
    assert trained | {name: row.score_sum for name, row in waiting.items()} == pytest.approx(expected)


def test_results_are_kept_as_long_as_they_hold(tried: Played) -> None:
    for number in range(1, ROUNDS + 1):
        kept = {row.content_digest: row.round for row in tried.rows(TrialResult, TRIAL, number)}
        assert set(kept.values()) <= {number, number - 1}
        texts = set(pairs_of(tried, number))
        assert {digest for digest, last in kept.items() if last == number} == texts
    metrics = {row.name: row.value for row in tried.rows(Metric, "health", 1)}
    assert metrics["trial_episodes"] == LAYOUTS * 6 and metrics["trial_texts"] == 5


def test_a_person_sees_the_trial_of_a_note(tried: Played) -> None:
    bank = recorded_bank(tried.run, tried.recipe, ROUNDS)
    entry = bank.entries()[0]
    story = why(tried.run.path, entry.entry_id)
    told = story.versions[0].tried
    assert told is not None and told.admitted and told.pairs == LAYOUTS
    assert all(use.episode_id.startswith("r") for use in story.uses), "what a trial played is no use"
    _, counted = query(tried.run.path, "SELECT count(*)::INT, sum(admitted::INT)::INT FROM trials WHERE round = 1")
    rows = tried.rows(Trial, TRIAL, 1)
    assert counted == [(len(rows), sum(row.admitted for row in rows))]


@pytest.mark.slow
def test_equal_settings_give_equal_digests_whatever_ran_before(tried: Played, tmp_path: Path) -> None:
    assert played(tmp_path, trial={"reuse_rounds": 1}).digests() == tried.digests()


@pytest.mark.slow
def test_rounds_that_overlap_and_many_parts_have_the_same_digests_in_any_order(tmp_path: Path) -> None:
    """Two families whose experiences fill a wave each, with every switch that can go with a trial."""
    environment = {"kind": "frozenlake", "size_min": 2, "size_max": 2, "frozen_probability": 1.0, "max_turns": 4,
                   "held_out_moves": 1}  # fmt: skip
    families = [
        {"name": name, "environment": environment, "groups": 1, "train_seeds": {"start": 0, "count": 64},
         "evaluation_seeds": {"start": 1_000_000, "count": 2}}
        for name in ("here", "there")
    ]  # fmt: skip
    settings = {
        "method__families": families, "method__overlap": True, "method__rollout__wave_groups": 1,
        "method__rollout__mixed_waves": True, "method__recipe__suppress": {"min_uses": 2, "standard_errors": 0.2},
        "method__recipe__merge__every": 2, "method__evaluation__every": 0,
        "method__recipe__trial": {"layouts": 3, "screen": 1, "max_experiences": 3, "reuse_rounds": 0, "reward": "both"},
    }  # fmt: skip
    in_turn = Played(tmp_path / "in_turn", experiment(**settings), ROUNDS)
    late = Played(tmp_path / "late", experiment(**settings), ROUNDS, order=second_track_late)
    assert late.digests() == in_turn.digests() and problems_of(late.run, late.recipe) == []
    for number in range(1, ROUNDS + 1):
        results = late.rows(TrialResult, TRIAL, number)
        assert {row.pairs for row in results} <= {1, 3}, "what is not ahead after one layout is given up"
        assert all(row.pairs == 3 or row.wins_with <= row.wins_without for row in results)
        assert {row.family for row in results} == {"here", "there"}
        per_family = Counter(row.family for row in results)
        assert max(per_family.values()) <= 3
        untried = [row for row in late.rows(Trial, TRIAL, number) if row.reason_code == "untried"]
        assert all(row.difference is None and not row.admitted for row in untried)


def test_a_trial_in_which_every_pair_broke_is_made_again() -> None:
    def result(pairs: int) -> TrialResult:
        return TrialResult(family="f", content_digest="d", round=5, pairs=pairs, wins_with=0, wins_without=0)

    config = TrialConfig(layouts=4, threshold=0.25, reuse_rounds=10)
    assert in_force([result(1)], config, round=6) and not in_force([result(0)], config, round=6)


def test_the_actor_that_a_trial_beside_the_next_round_plays_with_is_kept() -> None:
    overlapped = experiment(method__overlap=True, method__recipe__trial={"layouts": 4, "threshold": 0.25}).method
    assert recipe_of(overlapped).reach() == 2, "the next round's actor may be written by then"
    assert recipe_of(experiment(method__recipe__trial={"layouts": 4, "threshold": 0.25}).method).reach() == 1


def rewriting(read: str, generator: np.random.Generator) -> str:
    """The extractor sometimes rewrites what guided an episode. What the actor makes of a text is in its first word."""
    kind = "UPDATE" if re.search(r"Advice: (win|lose)", read) else "ADD"
    text = f"{kind}: {generator.choice(['win', 'lose'])} {generator.integers(1000)}"
    return text if generator.random() < (0.25 if kind == "UPDATE" else 0.12) else "RETURN"


@pytest.mark.slow
def test_a_proven_text_is_tried_beside_its_update_and_the_trial_says_which_is_better(tmp_path: Path) -> None:
    changes = {
        "method__recipe__bank__proven": {"uses": 1, "outcome": -1},
        "method__recipe__bank__duplicates": "reject",
        "method__seed": 3,  # in these rounds a version waits, and another replaces what it rewrites
    }
    made = experiment(method__recipe__trial={"layouts": LAYOUTS, "threshold": -1}, **FEW, **changes)
    services = Watching(made)
    services._policies["extractor"] = Policy(rewriting)
    run = Played(tmp_path, made, 8, services, services.order)
    told: Counter[str] = Counter()
    for number in range(2, run.rounds + 1):
        before = recorded_bank(run.run, run.recipe, number - 1)
        digest_of = {entry.entry_id: entry.content_digest for entry in before.entries()}
        results = {row.content_digest: row for row in run.rows(TrialResult, TRIAL, number) if row.round == number}
        played = defaultdict(set)
        for each in run.rows(Episode, TRIAL, number):
            if each.guided:
                played[each.content_digests[0]].add(each.environment_seed)
        operations = {row.operation_id: row for row in run.rows(Operation, "distill", number)}
        touched: set[str] = set()
        for event in run.rows(BankEvent, "consolidate", number):
            operation = operations.get(event.operation_id or "")
            if operation is None or operation.kind != "update" or event.kind not in ("add", "update"):
                continue
            held = operation.entry_id or ""
            if held in touched or held not in digest_of:
                continue
            touched.add(held)
            new, old = results.get(event.after_digest or ""), results.get(digest_of[held])
            if event.kind == "add":
                assert event.parents == [held] and event.reason == "waits_beside"
                told["waits"] += 1
                assert new is None or old is None or new.wins_with < old.wins_with
            elif new is not None and old is not None:
                told["replaced"] += 1
                assert new.wins_with >= old.wins_with
                assert played[event.after_digest or ""] == played[digest_of[held]], "the same layouts"
    assert told["waits"] and told["replaced"], told
    assert problems_of(run.run, run.recipe) == []


@pytest.mark.parametrize(("seeds", "repeated"), sampled([(18, 2), (20, 0), (16, 4)], 3))
def test_the_games_of_a_trial_are_others_than_those_of_the_round_as_far_as_there_are_any(
    tmp_path: Path, seeds: int, repeated: int
) -> None:
    run = played(tmp_path, 1, method__families__0__groups=16, method__families__0__train_seeds__count=seeds)
    collected, tried = ({each.environment_seed for each in run.rows(Episode, stage, 1)} for stage in ("collect", TRIAL))
    assert (len(collected), len(tried), len(collected & tried)) == (16, LAYOUTS, repeated)


def test_a_text_comes_in_only_by_the_output_that_did_best() -> None:
    def asked(episode: str, output: str, text: str) -> Asked:
        operation = Operation(
            operation_id=f"{output}-o0", round=2, distillation_id=output, generation_id=output, index=0, kind="add",
            family="room", entry_id=f"x-{output}", text=text, parents=[], episode_ids=[episode], embedder_cut=False,
        )  # fmt: skip
        return Asked(operation, TextKey("room", text_digest(text)), possible=True, won=True)

    outputs = [asked("A", "a0", "X"), asked("A", "a1", "Y"), asked("B", "b0", "Y"), asked("B", "b1", "Z")]
    wins = {"X": 4, "Y": 2, "Z": 1}
    results = {
        each.key: TrialResult(family="room", content_digest=each.key.content_digest, round=2, pairs=4,
                              wins_with=wins[each.operation.text or ""], wins_without=0)
        for each in outputs
    }  # fmt: skip
    rows = trials_of(outputs, results, TrialConfig(layouts=4, threshold=0.25), round=2)
    assert {row.generation_id: row.reason_code for row in rows} == {
        "a0": "ok", "a1": "outdone", "b0": "ok", "b1": "outdone",
    }  # fmt: skip
