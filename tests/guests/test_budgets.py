"""Arms at equal budgets, against arithmetic by hand; what counts as one, against the rows of a run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from crl.lab.study.config import Study
from crl.lab.study.files import chart_groups, render_study
from crl.lab.study.metrics import Rate, RunMetrics, read_run
from crl.lab.study.results import equal_budgets, summarize_study
from crl.lab.study.statistics import interval
from crl.lab.study.table import interval_text, study_markdown, tables
from crl.recipes.dreamgym.rows import Transition
from crl.recipes.erl.rows import Reflection
from crl.records import Distillation, Episode, Generation
from tests.marks import sampled
from tests.recipes.dreamgym import dreamgym_played
from tests.recipes.erl import erl_played

STUDY = Study.model_validate({
    "name": "s", "base": Path("b.yaml"), "rounds": 4, "seeds": [1, 2], "compare_with": "plain",
    "arms": {"plain": {}, "costly": {"title": "Costly | arm"}},
})  # fmt: skip


def run(wins: list[int], tokens: list[int], steps: list[int], bank: list[int] | None = None) -> RunMetrics:
    """Evaluated after rounds 0, 2 and 4, of 100 games."""

    def rates(values: list[int]) -> dict[int, Rate]:
        return {number: Rate(successes=value, episodes=100) for number, value in zip((0, 2, 4), values, strict=True)}

    return RunMetrics(
        with_bank={} if bank is None else rates(bank), without_bank=rates(wins),
        episodes={number: 10 * number for number in range(5)},
        tokens=dict(zip(range(5), tokens, strict=True)), real_steps=dict(zip(range(5), steps, strict=True)),
        outputs=0, malformed=0, returned=0, experiences_true=None, coverage=None, alarms=[],
    )  # fmt: skip


FIGURES = {
    "plain": {
        1: run([0, 20, 40], [0, 50, 100, 150, 200], [0, 5, 10, 15, 20]),
        2: run([10, 30, 30], [0, 50, 110, 160, 220], [0, 5, 10, 15, 20]),
    },
    "costly": {
        1: run([0, 30, 80], [0, 200, 400, 600, 800], [0, 5, 10, 15, 20], bank=[0, 50, 90]),
        2: run([0, 40, 80], [0, 100, 200, 300, 400], [0, 5, 10, 15, 20], bank=[0, 60, 80]),
    },
}


def test_every_arm_is_taken_where_it_had_used_as_much_as_the_most_frugal_run() -> None:
    (budget,) = equal_budgets(STUDY, FIGURES)  # all runs played as many episodes and steps
    assert (budget.kind, budget.amount) == ("tokens", 200)
    plain, costly = budget.arms
    # The second plain run was evaluated at 110 and 220 tokens; the costly ones at 400 and 800, and at 200 and 400.
    by_hand = {"plain": [0.40, 0.30], "costly": [0.15, 0.40], "bank": [0.25, 0.60]}
    assert plain.without_bank == interval(by_hand["plain"]) and plain.with_bank is None
    assert costly.without_bank == interval(by_hand["costly"]) and costly.with_bank == interval(by_hand["bank"])
    with_bank, without = costly.differences["plain"]
    assert without is not None and with_bank is not None and plain.differences == {}
    assert without.mean == pytest.approx(np.mean([0.15 - 0.40, 0.40 - 0.30]))
    assert with_bank.mean == pytest.approx(np.mean([0.25 - 0.40, 0.60 - 0.30])), "a reference without a bank has none"


def test_a_frugal_third_arm_does_not_move_a_comparison_of_two_others() -> None:
    cheap = [0, 5, 10, 15, 20]
    frugal = {seed: run([0, 10, 20], tokens=cheap, steps=[0, 5, 10, 15, 20]) for seed in (1, 2)}
    study = STUDY.model_copy(update={"arms": {**STUDY.arms, "frugal": STUDY.arms["plain"]}})
    (budget,) = equal_budgets(study, {**FIGURES, "frugal": frugal})
    assert budget.amount == 20, "means are where the most frugal of all runs ended"
    (before,) = equal_budgets(STUDY, FIGURES)
    assert budget.arms[1].arm == "costly" and budget.arms[1].differences == before.arms[1].differences


def test_the_table_says_how_much_that_is() -> None:
    result = summarize_study(STUDY, FIGURES)
    reached, differences = [each for each in tables(result) if "equal generated tokens" in each.title]
    assert reached.title == "At equal generated tokens: 200"
    assert differences.title == "Paired differences at equal generated tokens"
    assert [row[:2] for row in differences.rows] == [["Costly | arm", "plain"]]
    for table in (reached, differences):
        assert {len(row) for row in table.rows} == {len(table.columns)}
    assert "success between two evaluations is interpolated" in study_markdown(result)


@pytest.mark.usefixtures("plain_charts")
def test_where_real_steps_differ_curves_are_drawn_over_their_means_too() -> None:
    """The costly arm takes no real step before round 2 on one seed, and none after it on the other."""
    metrics = {
        "plain": FIGURES["plain"],
        "costly": {
            1: run([0, 30, 80], [0] * 5, [0, 0, 0, 8, 8], bank=[0, 50, 90]),
            2: run([0, 40, 80], [0] * 5, [0, 4, 9, 9, 9], bank=[0, 60, 80]),
        },
    }
    result = summarize_study(STUDY, metrics)
    assert result.over_steps and not summarize_study(STUDY, FIGURES).over_steps
    ((_, charts),) = chart_groups(result)
    assert [chart.title for chart in charts[2:]] == [f"{chart.title}, over real steps" for chart in charts[:2]]
    assert len(chart_groups(summarize_study(STUDY, FIGURES))[0][1]) == 2
    bank, free = charts[2:]
    assert bank.columns == ["round", "plain (no bank)", "Costly | arm"]

    def cell(wins: list[int], steps: str) -> str:
        return f"{interval_text(interval([each / 100 for each in wins]))} at {steps}"

    assert bank.rows == [
        ["0", cell([0, 10], "0"), cell([0, 0], "0")],
        ["2", cell([20, 30], "10"), cell([50, 60], "4")],  # 4.5, rounded to even
        ["4", cell([40, 30], "20"), cell([90, 80], "8")],
    ]
    assert free.rows[1] == ["2", cell([20, 30], "10"), cell([30, 40], "4")]
    page = render_study(result, [])
    assert "over real environment steps a point is an evaluation" in page.lower()
    assert "a point is an evaluation" not in render_study(summarize_study(STUDY, FIGURES), [])


def test_nothing_is_said_where_all_used_the_same() -> None:
    assert equal_budgets(STUDY, {"plain": {1: FIGURES["plain"][1]}}) == []
    assert equal_budgets(STUDY, {}) == []


def test_a_budget_that_a_run_has_not_noted_is_left_out() -> None:
    """Runs of one seed were kept before seconds were counted."""
    noted = {"seconds": dict(enumerate([0, 7, 9, 15, 20]))}
    metrics = {
        arm: {seed: each.model_copy(update=noted if arm == "plain" or seed == 1 else {}) for seed, each in runs.items()}
        for arm, runs in FIGURES.items()
    }
    assert [budget.kind for budget in equal_budgets(STUDY, metrics)] == ["tokens"]
    metrics["costly"][2] = metrics["costly"][2].model_copy(update={"seconds": dict(enumerate([0, 10, 20, 30, 40]))})
    _, budget = equal_budgets(STUDY, metrics)
    assert (budget.kind, budget.amount) == ("seconds", 20)
    assert budget.arms[1].without_bank == interval([0.80, 0.40])
    assert "At equal seconds of training: 20" in [table.title for table in tables(summarize_study(STUDY, metrics))]


@pytest.mark.slow
def test_what_a_run_used_is_counted_from_its_rows(tmp_path: Path) -> None:
    """Of ERL every attempt and reflection; of DreamGym no step in a model, no text that one is fitted to, and no token
    of random play; of no recipe an evaluation."""
    for name, played in (
        ("erl", erl_played.played(tmp_path / "erl", 2)),
        ("dream", dreamgym_played.played(tmp_path / "dream", 2, method__recipe__synthetic_share=0.5)),
    ):
        used = SimpleNamespace(tokens=0, real=0, random=0, seconds=0.0)
        metrics = read_run(played.run.path, 2)
        for number in (1, 2):
            for stage in played.run.complete_stages(number):
                if not stage.startswith("evaluate"):
                    used.seconds += played.run.manifest(number, stage).provenance["seconds"]
                    records = played.rows(Generation, stage, number)
                    moves = played.rows(Transition, stage, number) if name == "dream" else []
                    random = {f"{row.episode_id}-{stage}" for row in moves if row.policy == "random"}
                    used.random += len(random)
                    used.tokens += sum(
                        sum(row.loss_mask) for row in records if row.kind != "fit" and row.generation_id not in random
                    )
                    used.real += sum(r.turns for r in played.rows(Episode, stage, number) if r.stream != "synthetic")
            assert (metrics.tokens[number], metrics.real_steps[number]) == (used.tokens, used.real), name
            assert metrics.seconds[number] == round(used.seconds) >= metrics.seconds[0] == 0
        assert (used.random > 0) == (name == "dream")
        episodes = [row for number in (1, 2) for row in played.rows(Episode, "collect", number)]
        assert used.tokens > sum(row.tokens_sampled for row in episodes)
        assert used.real > 0 and any(row.stream == "synthetic" for row in episodes) == (name == "dream")


@pytest.mark.parametrize("memory", sampled([True, False], 2))
def test_of_reflections_those_without_form_are_malformed_and_none_says_return(tmp_path: Path, memory: bool) -> None:
    played = erl_played.played(tmp_path, 1, **({} if memory else {"method__recipe__memory": None}))
    codes = [row.reason_code for row in played.rows(Reflection, "reflect", 1)]
    if memory:
        assert "return" in {row.verdict for row in played.rows(Distillation, "distill", 1)}, "attempts that failed"
    metrics = read_run(played.run.path, 1)
    malformed = sum(code != "ok" for code in codes)
    assert (metrics.outputs, metrics.malformed, metrics.returned) == (len(codes), malformed, None)
    assert 0 < malformed < len(codes)
    study = STUDY.model_copy(update={"rounds": 1})
    shown = summarize_study(study, {"plain": {1: metrics}}).arms[0]
    assert shown.malformed == interval([malformed / len(codes)]) and shown.returned is None
