"""Dynamic sampling in whole rounds: what is drawn again, who reads it, what is trained; with models that are told what
to say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.config.load import load_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.errors import BadInput
from crl.lab.study.metrics import read_run
from crl.records import (
    Credit,
    Distillation,
    Episode,
    Metric,
    Retrieval,
    RetrievalCount,
    Sample,
    SuccessRate,
    Task,
    rows_of,
)
from crl.report.bank import BankAfter
from crl.report.summary import summarize
from crl.report.views import query
from crl.rounds.recipe import recipe_of
from crl.rounds.stage import Recipe, draw_of, draws_of
from crl.run.lease import Lease
from tests.unit.recipes.played import CRITIC, ROOT, Played, experiment

DRAWS, ROUNDS, GROUPS = 3, 2, 4
SAMPLING = {"method__rollout__dynamic_sampling": {"max_draws": DRAWS}}


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return Played(tmp_path_factory.mktemp("played"), experiment(**SAMPLING), ROUNDS)


def all_rows(played: Played, row_type: Any, stage: str, number: int) -> list[Any]:
    """Rows of every draw, by what is in the folder."""
    names = sorted(name for name in played.run.complete_stages(number) if name.partition("_")[0] == stage)
    return [row for name in names for row in rows_of(row_type, played.run.read(number, name, row_type))]


def varied(episodes: list[Episode]) -> set[int]:
    """Groups with a won and a lost rollout in one of their streams, reckoned here."""
    found: dict[tuple[int, str], list[bool]] = defaultdict(list)
    for row in episodes:
        found[row.group, row.stream].append(row.success)
    return {group for (group, _), won in found.items() if 0 < sum(won) < len(won)}


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_a_draw_has_as_many_groups_as_teach_nothing_so_far(played: Played, number: int) -> None:
    listed = [name for name in played.run.complete_stages(number) if name.partition("_")[0] in ("plan", "collect")]
    assert sorted(listed) == sorted(["plan", "collect", "plan_2", "collect_2", "plan_3", "collect_3"])
    episodes: list[Episode] = []
    seen: set[int] = set()
    for draw in range(1, DRAWS + 1):
        end = "" if draw == 1 else f"_{draw}"
        tasks = played.rows(Task, f"plan{end}", number)
        groups = {task.group for task in tasks}
        assert len(groups) == GROUPS - len(varied(episodes)) and not groups & {row.group for row in episodes}
        drawn = played.rows(Episode, f"collect{end}", number)
        assert [row.episode_id for row in drawn] == [task.episode_id for task in tasks]
        seeds = {task.environment_seed for task in tasks}
        assert len(seeds) == len(groups) and not seeds & seen, "other tasks, as long as there are others"
        seen |= seeds
        episodes += drawn
    assert len({row.episode_id for row in episodes}) == len(episodes)


def test_rounds_drew_again_and_some_stage_had_nothing_to_play(played: Played) -> None:
    """Without both the tests here would show nothing."""
    games = [len(all_rows(played, Episode, "collect", number)) for number in range(1, ROUNDS + 1)]
    once = played.method.rollout.group_size * GROUPS
    assert max(games) > once and min(games) < DRAWS * once
    empty = [name for number in range(1, ROUNDS + 1) for name in ("collect_2", "collect_3")
             if not played.rows(Episode, name, number)]  # fmt: skip
    assert empty, "a stage with one empty part"


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_the_update_learns_from_groups_that_vary_and_from_no_other(played: Played, number: int) -> None:
    episodes = all_rows(played, Episode, "collect", number)
    trains = varied(episodes)
    samples = {row.generation_id: row for row in played.rows(Sample, "credit", number) if row.role == "actor"}
    kept = [row for row in episodes if row.group in trains]
    assert samples.keys() == {name for row in kept for name in row.generation_ids}
    for row in kept:
        mine = [each for each in kept if (each.group, each.stream) == (row.group, row.stream)]
        rewards = np.array([each.reward for each in mine])
        sample = samples[row.generation_ids[0]]
        spread = rewards.std()
        expected = (row.reward - rewards.mean()) / spread if spread > 1e-6 else 0.0
        assert sample.advantage == pytest.approx(expected)
        assert sample.weight == pytest.approx(1 / len(trains) / 2 / len(mine)), "the mean is over groups that vary"


@pytest.mark.parametrize("number", range(1, ROUNDS + 1))
def test_whoever_reads_collect_reads_every_draw(played: Played, number: int) -> None:
    episodes = all_rows(played, Episode, "collect", number)
    usable = [row for row in episodes if row.error is None]
    distilled = played.rows(Distillation, "distill", number)
    assert {row.episode_id for row in distilled} == {row.episode_id for row in usable}
    credited = played.rows(Credit, "credit", number)
    assert {row.episode_id for row in credited} == {row.episode_id for row in usable if row.guided}
    health = {row.name: row.value for row in played.rows(Metric, "health", number)}
    assert health["episode_tokens_sampled"] == sum(row.tokens_sampled for row in episodes)
    read = played.run.manifest(number, "credit").digested.inputs
    assert {f"{number:04d}/{name}" for name in ("collect", "collect_2", "collect_3", "plan_3")} <= read.keys()


def test_counters_go_on_from_draw_to_draw_and_from_round_to_round(played: Played) -> None:
    counted: Counter[str] = Counter()
    for number in range(1, ROUNDS + 1):
        for draw in ("plan", "plan_2", "plan_3"):
            chosen = [row for row in played.rows(Retrieval, draw, number) if row.chosen]
            for row in played.rows(Retrieval, draw, number):
                assert row.count >= counted[row.entry_id], "eq. 6 counts what was drawn before"
            counted.update(row.entry_id for row in chosen)
            after = {row.entry_id: row.count for row in played.rows(RetrievalCount, draw, number)}
            assert {name: counted[name] for name in after} == after
            assert len(after) == len(played.rows(RetrievalCount, draw, number))
    assert counted.total() > 0
    bank = BankAfter(played.run, ROUNDS)
    shown = bank.table(np.arange(len(bank.snapshot)))["entry_id"].to_pylist()
    assert dict(zip(shown, bank.retrieved_N.tolist(), strict=True)) == {name: counted[name] for name in shown}


@pytest.mark.slow
def test_everything_drawn_is_counted_in_reports_and_comparisons(played: Played) -> None:
    games = {number: len(all_rows(played, Episode, "collect", number)) for number in range(1, ROUNDS + 1)}
    _, rows = query(
        played.run.path,
        "SELECT round, sum(games)::INT FROM success_by_condition WHERE stage = 'collect' GROUP BY round",
    )
    assert dict(rows) == games
    _, rows = query(
        played.run.path, "SELECT round, count(*) FROM episodes WHERE draw_of(stage) = 'collect' GROUP BY round"
    )
    assert dict(rows) == games
    for each in summarize(played.run.path):
        if each.round:
            assert each.guided.episodes + each.free.episodes == games[each.round]
            assert not {"collect_2", "plan_2"} & each.seconds.keys() and each.seconds["collect"] > 0
    metrics = read_run(played.run.path, ROUNDS)
    assert metrics.training_episodes == sum(games.values())
    tokens = sum(row.tokens_sampled for number in games for row in all_rows(played, Episode, "collect", number))
    _, [(written,)] = query(played.run.path, "SELECT sum(list_sum(loss_mask)) FROM generations WHERE kind = 'distill'")
    assert metrics.tokens[ROUNDS] == tokens + written


@pytest.mark.slow
def test_a_round_in_which_the_actor_is_not_trained_draws_once(tmp_path: Path) -> None:
    played = Played(tmp_path, experiment(**SAMPLING, method__recipe__warm_up_rounds=1), 2)
    assert not played.rows(Task, "plan_2", 1) and played.rows(Task, "plan_2", 2)
    assert played.rows(RetrievalCount, "plan_3", 1) == played.rows(RetrievalCount, "plan", 1)


@pytest.mark.slow
def test_one_baseline_of_a_group_is_one_stream(tmp_path: Path) -> None:
    """Guided won and free lost teaches nothing where each has a baseline, and something where both share one."""
    made = experiment(**SAMPLING, method__recipe__actor_objective={"advantage": "pooled"})
    played = Played(tmp_path, made, 2)
    for number in (1, 2):
        first = played.rows(Episode, "collect", number)
        won: dict[int, set[bool]] = defaultdict(set)
        for row in first:
            won[row.group].add(row.success)
        again = {task.group for task in played.rows(Task, "plan_2", number)}
        assert len(again) == sum(len(outcomes) < 2 for outcomes in won.values())


@pytest.mark.slow
def test_every_draw_has_its_critique(tmp_path: Path) -> None:
    critic = {"method__recipe__actor_critic": {"max_new_tokens": 64}, "method__prompts__critic": CRITIC}
    played = Played(tmp_path, experiment(**SAMPLING, **critic), 2)
    names = [stage.name for stage in played.recipe.stages]
    assert [name for name in names if draw_of(name)[1] > 1] == [
        f"{stage}_{draw}" for draw in (2, 3) for stage in ("plan", "critique", "collect")
    ]
    assert names.index("collect_3") < names.index("distill") and names.index("plan_2") > names.index("collect")
    for draw in ("critique_2", "critique_3"):
        rates, first = (played.rows(SuccessRate, name, 2) for name in (draw, "critique"))
        assert rates == first, "rates are of the rounds before"
    [rate] = played.rows(SuccessRate, "critique", 2)
    assert rate.episodes == len(all_rows(played, Episode, "collect", 1))


@pytest.mark.slow
def test_a_round_that_stopped_in_a_draw_goes_on_to_the_same_digests(tmp_path: Path, played: Played) -> None:
    """Stages are made anew by somebody who knows nothing of what was made before but the record."""

    def twice(recipe: Recipe, method: Any, rounds: int) -> Any:
        for number in range(rounds + 1):
            for stage in recipe.stages_of(method, number):
                yield number, stage.name

    again = Played(tmp_path, experiment(**SAMPLING), 1, order=twice)
    with Lease.acquire(again.run.path, seconds=600) as lease:
        for stage in again.recipe.stages_of(again.method, 2):
            execute_stage(
                again.run, again.recipe, 2, stage.name, attempt=Attempt(token=lease.token),
                services=type(again.services)(experiment(**SAMPLING)),
            )  # fmt: skip
    theirs = played.digests()
    for number in (1, 2):
        for name in again.run.complete_stages(number):
            assert again.run.manifest(number, name).digest == theirs[f"{number}/{name}"]


def test_what_a_round_plans_is_one_draw_and_what_it_may_write_is_of_all() -> None:
    """Replay scores its buffer anew after so many planned episodes, however often what teaches nothing is drawn."""
    once, more = experiment().method, experiment(**SAMPLING).method
    assert more.episodes == once.episodes
    assert more.recipe.outputs(more)["extractor"] == DRAWS * once.recipe.outputs(once)["extractor"]


def test_stages_and_settings_are_those_of_before_without_it() -> None:
    plain = experiment()
    assert "dynamic_sampling" not in plain.method.model_dump()["rollout"]
    assert not [stage for stage in recipe_of(plain.method).stages if draw_of(stage.name)[1] > 1]


@pytest.mark.parametrize("kind", ["experience_only", "bank_from_chats"])
def test_recipes_without_an_actor_to_train_refuse_it(kind: str) -> None:
    with pytest.raises(BadInput, match="dynamic_sampling"):
        load_experiment(
            ROOT / "conf/tiny.yaml",
            {"method.recipe": {"kind": kind}, "method.rollout.dynamic_sampling": {"max_draws": 2}},
        )


def test_groups_in_which_no_stream_can_vary_are_refused() -> None:
    pairs = {"method__rollout__group_size": 2}
    with pytest.raises(BadInput, match="one guided rollout and one free"):
        experiment(**SAMPLING, **pairs)
    assert experiment(**SAMPLING, **pairs, method__recipe__actor_objective={"advantage": "pooled"})
    assert experiment(**pairs)


def test_the_draws_of_a_stage_are_in_order_and_other_numbers_are_no_draws() -> None:
    names = ["collect_10", "plan", "collect", "collect_2", "retry_2", "retry", "plan_2", "update_2"]
    assert draws_of("collect", names) == ["collect", "collect_2", "collect_10"]
    assert draws_of("retry", names) == ["retry"] and draws_of("plan_2", names) == ["plan_2"]
    assert [draw_of(name) for name in ("collect_3", "retry_2")] == [("collect", 3), ("retry_2", 1)]
