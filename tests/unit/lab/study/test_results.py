"""From metrics of runs to the result: which curves, which pairs, which words. No run directory."""

from __future__ import annotations

from pathlib import Path

import pytest
from scipy import stats

from crl.lab.study.config import Study
from crl.lab.study.files import chart_groups
from crl.lab.study.metrics import GameCost, Rate, RunMetrics, collapse_alarms
from crl.lab.study.results import StudyResult, summarize_study
from crl.lab.study.statistics import interval
from crl.lab.study.table import interval_text, study_markdown, tables
from crl.records import Metric
from crl.rounds.alarms import health_metrics

SEEDS = [1, 2, 3, 4, 5]
WITH = {"ours": [50, 61, 47, 58, 55], "static": [20, 25, 21, 19, 24]}
WITHOUT = {"ours": [21, 25, 19, 22, 20], "static": [20, 22, 19, 18, 21], "base": [27, 30, 22, 25, 31]}


def run(arm: str, place: int, rounds: int = 2) -> RunMetrics:
    def curve(values: list[int]) -> dict[int, Rate]:
        return {n: Rate(successes=values[place] * n, episodes=100 * rounds) for n in range(rounds + 1)}

    return RunMetrics(
        with_bank=curve(WITH[arm]) if arm in WITH else {},
        without_bank=curve(WITHOUT[arm]),
        episodes={n: 128 * n for n in range(rounds + 1)},
        outputs=10 if arm in WITH else 0,
        malformed=place,
        returned=1,
        experiences_true=0.6 if arm == "ours" else None,
        coverage=None,
        alarms=["this run has collapsed: no episode succeeds any more"] if (arm, place) == ("static", 2) else [],
    )


def summarized(arms: dict[str, dict[str, object]] | None = None, missing: tuple[str, int] | None = None) -> StudyResult:
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": SEEDS, "compare_with": ["base", "static"],
        "level": 0.5, "last": 2, "arms": arms or {"ours": {}, "static": {}, "base": {}},
    })  # fmt: skip
    metrics = {
        arm: {seed: run(arm, place) for place, seed in enumerate(SEEDS) if (arm, seed) != missing} for arm in WITHOUT
    }
    return summarize_study(study, metrics)


def test_differences_are_with_bank_against_bank_where_the_reference_has_one() -> None:
    found = {(each.arm, each.reference): each for each in summarized().differences}
    assert set(found) == {("ours", "base"), ("ours", "static"), ("static", "base"), ("base", "static")}

    def last_two(values: list[int]) -> list[float]:
        return [value * (1 + 2) / 2 / 200 for value in values]

    for pair, bank, theirs in (
        (("ours", "base"), True, WITHOUT["base"]),
        (("ours", "static"), True, WITH["static"]),
        (("ours", "static"), False, WITHOUT["static"]),
        (("static", "base"), False, WITHOUT["base"]),
    ):
        ours = (WITH if bank else WITHOUT)[pair[0]]
        difference = found[pair].with_bank if bank else found[pair].without_bank
        assert difference is not None
        wanted = stats.ttest_rel(last_two(ours), last_two(theirs)).confidence_interval(0.95)
        assert (difference.low, difference.high) == pytest.approx(tuple(wanted))
    assert found["base", "static"].with_bank is None, "an arm without a bank has no metric with one"


def test_a_seed_that_is_missing_on_one_side_is_no_pair() -> None:
    result = summarized(missing=("base", 3))
    assert result.unfinished == 1
    pairs = {(each.arm, each.reference): each.without_bank.seeds for each in result.differences}
    assert pairs["ours", "base"] == 4 and pairs["ours", "static"] == 5
    assert "4 of 5" in study_markdown(result) and "1 runs are not finished" in study_markdown(result)


def test_unequal_budgets_are_said() -> None:
    longer = run("ours", 0, rounds=4)
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": [1], "compare_with": "base",
        "arms": {"ours": {"rounds": 4, "title": "Ours"}, "base": {}},
    })  # fmt: skip
    result = summarize_study(study, {"ours": {1: longer}, "base": {1: run("base", 0)}})
    said = study_markdown(result)
    assert not result.differences[0].equal_episodes and "1, unequal episodes" in said
    assert "Training episodes differ: Ours 512, base 256." in said
    assert "The study names no seeds that its settings were chosen on." in said


def test_runs_that_began_with_different_weights_of_one_model_are_not_compared_in_silence() -> None:
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": [1, 2], "arms": {"base": {}},
    })  # fmt: skip
    begun = [run("base", 0).model_copy(update={"starts": {"warm:x/actor": each}}) for each in ("aa", "aa", "bb")]
    same = summarize_study(study, {"base": {1: begun[0], 2: begun[1]}})
    other = summarize_study(study, {"base": {1: begun[0], 2: begun[2]}})
    assert same.unequal_starts == [] and "Not comparable" not in study_markdown(same)
    assert other.unequal_starts == ["warm:x/actor"] and "warm:x/actor" in study_markdown(other)


def test_runs_that_were_evaluated_with_other_versions_are_not_compared_in_silence() -> None:
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": [1, 2, 3], "arms": {"base": {}},
    })  # fmt: skip
    made = [run("base", 0).model_copy(update={"made_with": {"torch": [each]}}) for each in ("2.13.0", "2.14.0")]
    made[1] = made[1].model_copy(update={"broken": 12})
    said = study_markdown(summarize_study(study, {"base": {1: made[0], 2: made[1]}}))
    assert "base, seed 2: 12 held-out games broke, and count as lost." in said and "seed 1: " not in said
    assert "Not all runs were evaluated with the same: torch 2.13.0 and 2.14.0." in said
    assert "Reported on seeds 1, 2. Not finished: seeds 3." in said
    assert "evaluated with the same" not in study_markdown(summarize_study(study, {"base": {1: made[0]}}))


def test_what_a_game_takes_with_an_empty_bank_is_what_it_takes_without() -> None:
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": [1, 2], "last": 2, "arms": {"ours": {}},
    })  # fmt: skip

    def costs(actions: dict[int, float]) -> dict[int, GameCost]:
        return {number: GameCost(actions=each, tokens_read=1, tokens_sampled=1) for number, each in actions.items()}

    without = {"costs_without_bank": costs({0: 8, 1: 8, 2: 8})}
    held = run("ours", 0).model_copy(update={**without, "costs_with_bank": costs({1: 4, 2: 2})})
    late = run("ours", 1).model_copy(update={**without, "costs_with_bank": costs({2: 4})})
    never = run("ours", 1).model_copy(update={**without, "with_bank": {}})
    for second, expected in ((late, 6), (never, 8)):
        [arm] = summarize_study(study, {"ours": {1: held, 2: second}}).arms
        assert arm.cost_with_bank is not None and arm.cost_with_bank.actions.mean == (3 + expected) / 2
        assert arm.cost_with_bank.actions.seeds == 2


def test_a_run_that_collapsed_is_named() -> None:
    result = summarized()
    assert "are not corrected for their number" in study_markdown(result)
    assert [arm.alarms for arm in result.arms] == [
        {},
        {3: ["this run has collapsed: no episode succeeds any more"]},
        {},
    ]
    said = study_markdown(result)
    assert "static, seed 3: this run has collapsed: no episode succeeds any more." in said
    assert "| static | 256 | 0.20 | 0.10 | – | – | 1 of 5 |" in said


def test_a_study_without_a_finished_run_is_a_table_of_dashes() -> None:
    study = Study.model_validate({"name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": [1], "arms": {"one": {}}})
    result = summarize_study(study, {})
    assert "| one | 0 of 1 | – | – |" in study_markdown(result) and chart_groups(result) == []


@pytest.mark.usefixtures("plain_charts")
def test_switches_have_charts_of_their_own_beside_what_they_are_compared_with() -> None:
    arms: dict[str, dict[str, object]] = {
        "ours": {},
        "base": {},
        "static": {"switch": "training", "compare_with": "ours"},
    }
    groups = chart_groups(summarized(arms))
    assert [switch for switch, _ in groups] == [None, "training"]
    names = [[chart.columns[1:] for chart in charts] for _, charts in groups]
    assert names[0] == [["ours", "base (no bank)"], ["ours", "base"]]
    assert names[1] == [["ours", "static"], ["ours", "static"]]


@pytest.mark.usefixtures("plain_charts")
def test_what_is_varied_has_tables_and_charts_by_its_values() -> None:
    # As if `static` were `ours` with another capacity.
    arms: dict[str, dict[str, object]] = {"ours": {}, "base": {}, "ours_room_8": {"switch": "room"}}
    room = {"title": "room", "values": {8: {"method.x": 1}, 32: {}}, "arms": ["ours", "base"]}
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 2, "seeds": SEEDS, "arms": arms, "scales": {"room": room},
        "last": 1,
    })  # fmt: skip
    metrics = {
        name: {seed: run(arm, place) for place, seed in enumerate(SEEDS)}
        for name, arm in {"ours": "ours", "base": "base", "ours_room_8": "static"}.items()
    }
    study.arms["base_room_8"] = study.arms["ours_room_8"].model_copy(update={"title": "never run"})
    result = summarize_study(study, metrics)
    found = {table.title: [list(table.columns), *map(list, table.rows)] for table in tables(result)}

    def cell(values: list[int]) -> str:
        return interval_text(interval([value / 100 for value in values]))

    assert found["With bank, by room"] == [["arm", "8", "32"], ["ours", cell(WITH["static"]), cell(WITH["ours"])]]
    assert found["Without bank, by room"] == [
        ["arm", "8", "32"],
        ["ours", cell(WITHOUT["static"]), cell(WITHOUT["ours"])],
        ["base", "–", cell(WITHOUT["base"])],
    ]  # fmt: skip
    (_, curves), (title, (bank, free)) = chart_groups(result)
    assert curves[0].columns == ["round", "ours", "base (no bank)"], "points of a scale have no curve"
    assert title == "room" and bank.columns == ["room", "ours", "base (no bank)"]
    assert free.rows == [["8", cell(WITHOUT["static"]), "–"], ["32", cell(WITHOUT["ours"]), cell(WITHOUT["base"])]]


def test_numbers_in_words() -> None:
    assert interval_text(interval([0.3, 0.4, 0.5])) == "0.40 [0.15, 0.65]"
    assert interval_text(interval([-0.3, -0.4, -0.5]), signed=True) == "−0.40 [−0.65, −0.15]"
    # On which side of 0 an interval ends is kept; a rate has no side.
    assert interval_text(interval([-0.001]), signed=True) == "−0.00" and interval_text(interval([-0.001])) == "0.00"
    assert interval_text(interval([0.0]), signed=True) == "+0.00" and interval_text(None) == "–"


def test_only_a_collapse_counts_as_one_and_no_other_alarm_of_a_rounds_health() -> None:
    metrics = {"outputs_cut": 0.2, "turns_valid": 0.5}
    rows = {row.name: row for row in health_metrics(metrics, {}, set(), round=3)}
    assert rows["outputs_cut"].alarm and rows["turns_valid"].alarm and collapse_alarms(rows) == []
    rows["collapsed"] = Metric(round=3, stage="health", name="collapsed", value=1.0, alarm="this run has …")
    assert collapse_alarms(rows) == ["this run has …"] and collapse_alarms({}) == []
