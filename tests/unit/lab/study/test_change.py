"""A world that changes in a run: families that change and those that stay, recovery, and stale experiences."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from scipy import stats

from crl.lab.study import change
from crl.lab.study.change import ExperienceCounts, RunChange, read_change, summarize_change
from crl.lab.study.config import Study
from crl.lab.study.files import CHANGE, chart_groups, write_study
from crl.lab.study.metrics import Rate, RunMetrics
from crl.lab.study.results import summarize_study
from crl.lab.study.statistics import Reached
from crl.lab.study.table import study_markdown, tables
from crl.records import Evaluation
from crl.run.directory import RunDirectory
from tests.unit.recipes.played import SETTINGS, Played, experiment

LAKE = SETTINGS["method.families.0.environment"]
CHANGED_IN = 2


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    common = {"environment": LAKE, "groups": 2, "evaluation_seeds": {"start": 1_000_000, "count": 8}}
    families = [
        {"name": "moves", **common, "changes": [{"round": CHANGED_IN, "environment": {"max_turns": 3}}]},
        {"name": "stays", **common},
    ]
    made = experiment(method__families=families, method__evaluation__every=1)
    return Played(tmp_path_factory.mktemp("changed"), made, 3)


class Rule:
    """The rule of a lake of four turns is `win`, of one of three turns `fine`."""

    def __init__(self, turns: int):
        self.rule = {4: "win", 3: "fine"}[turns]

    def truth(self, text: str) -> float:
        return float(text == self.rule)

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_families_that_change_are_counted_apart(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "make_environment", lambda family: Rule(family.environment.max_turns))
    found = read_change(played.run, [0, 1, 2, 3])
    assert found is not None and found.round == CHANGED_IN
    for number in range(4):
        for part, family in (("changed", "moves"), ("stayed", "stays")):
            for bank, arm in ((True, "with_bank"), (False, "without_bank")):
                rows = [
                    row.success
                    for row in played.rows(Evaluation, "evaluate", number)
                    if (row.family, row.condition) == (family, arm)
                ]
                if rows:
                    assert found.success[part][arm][number] == Rate(sum(rows), len(rows))
                    assert found.curve(part, bank=bank)[number] == sum(rows) / len(rows)
                else:
                    assert number not in found.success[part][arm]


def test_notes_that_were_true_before_are_stale_after(played: Played, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "make_environment", lambda family: Rule(family.environment.max_turns))
    found = read_change(played.run, [0, 1, 2, 3])
    assert found is not None and found.experiences
    for number, experiences in found.experiences.items():
        texts = [text for family, text in bank_of(played, number) if family == "moves"]
        now, before = ("fine", "win") if number >= CHANGED_IN else ("win", "win")
        stale = texts.count(before) if now != before else 0
        assert experiences == ExperienceCounts(entries=len(texts), true=texts.count(now), stale=stale)
    assert any(experiences.stale for experiences in found.experiences.values()) and any(
        experiences.true for experiences in found.experiences.values()
    )


def bank_of(played: Played, number: int) -> list[tuple[str, str]]:
    import crl

    return crl.open(played.run.path).bank(number).select("family, text").fetchall()


def test_a_run_without_a_change_has_none(tmp_path: Path) -> None:
    assert read_change(RunDirectory.create_or_open(experiment(), tmp_path), [0, 1]) is None


BEFORE, AFTER, END = [0.5, 0.6, 0.4], [0.1, 0.2, 0.3], [0.5, 0.5, 0.4]
ROUNDS = {0: [0.1, 0.1, 0.1], 30: BEFORE, 35: AFTER, 40: [0.46, 0.55, 0.3], 45: END, 50: END}


def run(place: int) -> RunMetrics:
    def curve(share: float) -> dict[int, Rate]:
        return {number: Rate(round(values[place] * share * 100), 100) for number, values in ROUNDS.items()}

    success = {"changed": {"with_bank": curve(1), "without_bank": curve(0.5)},
               "stayed": {"with_bank": {}, "without_bank": curve(0.8)}}  # fmt: skip
    experiences = {
        30: ExperienceCounts(entries=10, true=6, stale=0),
        35: ExperienceCounts(entries=10, true=1, stale=4 + place),
        45: ExperienceCounts(entries=20, true=15, stale=2),
    }
    rates = curve(1)
    return RunMetrics(
        with_bank=rates, without_bank=rates, episodes=dict.fromkeys(rates, 0), outputs=0, malformed=0, returned=0,
        experiences_true=None, coverage=None, alarms=[],
        change=RunChange(round=31, success=success, experiences=experiences),
    )  # fmt: skip


def test_recovery_over_seeds() -> None:
    found = summarize_change("ours", {seed: run(seed).change for seed in range(3)})  # type: ignore[misc]
    assert found is not None and (found.round, found.evaluated) == (31, (30, 35))
    changed = found.with_bank["changed"]
    low, high = stats.t.interval(0.95, 2, loc=sum(BEFORE) / 3, scale=stats.sem(BEFORE))
    assert (changed.before.low, changed.before.high) == pytest.approx((low, high))
    assert changed.after.mean == pytest.approx(0.2) and changed.last.mean == pytest.approx(sum(END) / 3)
    # Nine tenths of 0.5 were there from round 40 on, of 0.4 from round 45 on, of 0.6 once: 10, 15 rounds, and none.
    assert changed.rounds == Reached(median=15, reached=2, seeds=3)
    smoothed = summarize_change("ours", {seed: run(seed).change for seed in range(3)}, last=2)  # type: ignore[misc]
    assert smoothed is not None
    around = smoothed.with_bank["changed"]
    assert around.before.mean == pytest.approx((sum(BEFORE) / 3 + 0.1) / 2) and around.after.mean == pytest.approx(0.2)
    assert set(found.with_bank) == {"changed"} and set(found.without_bank) == {"changed", "stayed"}
    assert found.experiences_stale[35].mean == pytest.approx(0.5) and found.experiences_true[45].mean == 0.75


@pytest.mark.usefixtures("plain_charts")
def test_tables_charts_and_raw_results(tmp_path: Path) -> None:
    study = Study.model_validate({
        "name": "s", "base": Path("b.yaml"), "rounds": 50, "seeds": [0, 1, 2], "arms": {"ours": {"title": "Ours"}},
    })  # fmt: skip
    result = summarize_study(study, {"ours": {seed: run(seed) for seed in range(3)}})
    found = {table.title: table for table in tables(result)}
    assert found["Families that change, with bank"].rows[0][4] == "15 (2 of 3 seeds)"
    assert "Families that stay, with bank" not in found and "Families that stay, without bank" in found
    assert found["Experiences of families that change"].rows[0][1:4] == ["0.60 [0.60, 0.60]", "0.10 [0.10, 0.10]",
                                                                   "0.75 [0.75, 0.75]"]  # fmt: skip
    assert "Families change in round 31" in study_markdown(result)
    groups = dict(chart_groups(result))
    assert [chart.title for chart in groups["experiences of families that change"]] == ["true", "stale"]
    assert len(groups["families that change"]) == 2


@pytest.mark.usefixtures("plain_charts")
def test_raw_results_of_a_change(played: Played, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change, "make_environment", lambda family: Rule(family.environment.max_turns))
    found = read_change(played.run, [0, 1, 2, 3])
    assert found is not None
    study = Study.model_validate({"name": "s", "base": Path("b.yaml"), "rounds": 3, "seeds": [0], "arms": {"ours": {}}})
    metrics = run(0).model_copy(update={"change": found})
    monkeypatch.setattr("crl.lab.study.files.read_metrics", lambda runs: {"ours": {0: metrics}})
    write_study(study, [], tmp_path)
    rows = pq.read_table(tmp_path / CHANGE).to_pylist()
    expected = sum(len(rates) for arms in found.success.values() for rates in arms.values())
    assert len(rows) == expected > 0
    for row in rows:
        arm = "with_bank" if row["bank"] else "without_bank"
        rate = found.success[row["families"]][arm][row["round"]]
        assert (row["successes"], row["episodes"]) == (rate.successes, rate.episodes)
        if row["families"] == "changed" and row["bank"]:
            experiences = found.experiences[row["round"]]
            assert (row["entries"], row["true"], row["stale"]) == (
                experiences.entries,
                experiences.true,
                experiences.stale,
            )
        else:
            assert row["entries"] is None
    plain = run(0).model_copy(update={"change": None})
    monkeypatch.setattr("crl.lab.study.files.read_metrics", lambda runs: {"ours": {0: plain}})
    mine = {name: (tmp_path / name).write_text("kept") for name in ("chart-of-mine.txt", "experiences.svg")}
    (tmp_path / "chart-9-what-is-no-longer-asked.svg").write_text("old")
    write_study(study, [], tmp_path)
    there = {path.name for path in tmp_path.iterdir()}
    assert not {CHANGE, "chart-9-what-is-no-longer-asked.svg"} & there and mine.keys() < there


@pytest.mark.parametrize("rounds", [([2], [3]), ([1, 2], [1, 2])], ids=["apart", "twice"])
def test_changes_in_several_rounds_have_no_one_before_and_after(tmp_path: Path, rounds: tuple[list[int], ...]) -> None:
    families = [
        {"name": name, "environment": LAKE, "groups": 1, "evaluation_seeds": {"start": 1_000_000, "count": 4},
         "changes": [{"round": number, "environment": {"max_turns": 4 - number}} for number in listed]}
        for name, listed in zip("ab", rounds, strict=True)
    ]  # fmt: skip
    made = experiment(method__families=families, method__evaluation__every=1)
    assert read_change(RunDirectory.create_or_open(made, tmp_path), [0, 1]) is None


def test_who_had_nothing_before_recovers_nothing() -> None:
    nothing = {number: Rate(0, 100) for number in ROUNDS}
    success = {part: {"with_bank": {}, "without_bank": nothing} for part in ("changed", "stayed")}
    found = summarize_change("arm", {1: RunChange(round=31, success=success)})
    assert found is not None and found.without_bank["changed"].rounds == Reached(median=None, reached=0, seeds=1)


def test_a_seed_whose_bank_stayed_empty_counts_with_what_it_wins_without() -> None:
    def of(bank: dict[int, Rate]) -> RunChange:
        without = {number: Rate(10, 100) for number in ROUNDS}
        part = {"with_bank": bank, "without_bank": without}
        return RunChange(round=31, success={"changed": part, "stayed": part})

    full = {number: Rate(50, 100) for number in ROUNDS}
    found = summarize_change("arm", {1: of(full), 2: of({})})
    assert found is not None
    recovery = found.with_bank["changed"]
    assert recovery.last.mean == pytest.approx(0.3) and recovery.rounds.seeds == 2
    alone = summarize_change("arm", {1: of({}), 2: of({})})
    assert alone is not None and alone.with_bank == {}
