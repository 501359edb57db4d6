"""Every figure of a study's tables in the documentation, computed again from its raw results in `research/results/`."""

import re
from collections import defaultdict

import duckdb
import numpy as np
import pytest

from research.tests.raw_results import (
    BUDGETS,
    PAGES,
    RESULTS,
    ROOT,
    Raw,
    agree,
    difference_of,
    interval_of,
    mean_until,
    table_under,
)

PAPER = (ROOT / "research" / "study.md").read_text()


@pytest.fixture(scope="module", params=sorted(PAGES))
def study(request):
    return Raw(request.param), (ROOT / "research" / PAGES[request.param]).read_text()


def test_every_arm_of_the_study_is_in_its_raw_results(study):
    raw, page = study
    ran = {row[0] for row in table_under(page, "Held-out success")[1:] if not row[1].startswith("0 of ")}
    assert {arm for arm, _ in raw.curves} == {raw.arm_of[title] for title in ran}
    assert all(set(runs) <= set(raw.seeds) for runs in raw.curves.values())


def test_held_out_success(study):
    raw, page = study
    header, *rows = table_under(page, "Held-out success")
    assert header == ["arm", "seeds", "with bank", "without bank"]
    assert [row[0] for row in rows] == list(raw.arm_of)
    for title, seeds, with_bank, without in rows:
        arm = raw.arm_of[title]
        found, total = len(raw.final(arm, False)), len(raw.seeds)
        assert seeds == (str(found) if found == total else f"{found} of {total}"), "what is missing is said"
        agree(with_bank, interval_of(bank) if (bank := raw.final(arm, True)) else None)
        agree(without, interval_of(free) if (free := raw.final(arm, False)) else None)


def test_paired_differences(study):
    raw, page = study
    _, *rows = table_under(page, "Paired differences")
    assert len(rows) >= len({arm for arm, _ in raw.curves}) - 1
    for title, minus, with_bank, without, pairs in rows:
        arm, reference = raw.arm_of[title], raw.arm_of[minus]
        against = raw.final(reference, True) or raw.final(reference, False)
        agree(with_bank, difference_of(found, against) if (found := raw.final(arm, True)) else None)
        agree(without, difference_of(raw.final(arm, False), raw.final(reference, False)))
        assert int(pairs.split(",")[0]) == len(raw.final(arm, False).keys() & raw.final(reference, False).keys())


def test_what_was_varied(study):
    raw, page = study
    for title, arms in raw.scales.items():
        for bank, words in ((True, "With bank"), (False, "Without bank")):
            header, *rows = table_under(page, f"{words}, by {title}")
            for name, *cells in rows:
                assert header[1:] == [value for value, _ in arms[name]]
                for cell, (_, arm) in zip(cells, arms[name], strict=True):
                    agree(cell, interval_of(found) if (found := raw.final(arm, bank)) else None)


def test_on_the_way(study):
    raw, page = study
    if "## On the way\n" not in page:
        assert "## On the way" not in page
        return
    header, *rows = table_under(page, "On the way")
    assert header[1:3] == [f"rounds to {raw.level}, with bank", f"rounds to {raw.level}, without"]
    for title, *cells in rows:
        arm = raw.arm_of[title]
        for place, bank in enumerate((True, False)):
            runs = list(raw.curves.get((arm, bank), {}).values())
            for column, cell in (("round", cells[place]), ("training_episodes", cells[2 + place])):
                reached = [[p[column] for p in points if p["success"] >= raw.level] for points in runs]
                median = np.median([found[0] if found else np.inf for found in reached]) if runs else np.inf
                expected = "–" if not runs else f"{median:g}" if np.isfinite(median) else "not reached"
                assert cell.split(" (")[0] == expected, (title, column, bank)
                if (some := sum(map(bool, reached))) < len(runs):
                    assert cell.endswith(f" ({some} of {len(runs)} seeds)")
            agree(cells[4 + place], interval_of(areas) if (areas := raw.area(arm, bank)) else None)


@pytest.mark.parametrize(
    ("title", "of"), [("At the end of training", Raw.final), ("Averaged over training", Raw.area)], ids=["end", "mean"]
)
def test_ahead_of_both_of_its_parts(title, of):
    """The seeds of each study, and of both together."""
    studies = [Raw(name) for name in ("coevolution", "coevolution_again")]
    header, *rows = table_under(PAPER, title)
    assert header[1:] == [f"{len(studies[0].seeds)} seeds", f"{len(studies[1].seeds)} other seeds", "all 35"]
    assert len(rows) == 3
    for name, *cells in rows:
        which, reference = name.split(", minus ")
        arm, bank = studies[0].arm_of[reference], which == "with bank"
        found = [(of(each, "recommended", bank), of(each, arm, bank) or of(each, arm, False)) for each in studies]
        found.append((found[0][0] | found[1][0], found[0][1] | found[1][1]))
        assert len(found[2][0]) == 35
        for cell, (own, against) in zip(cells, found, strict=True):
            agree(cell, difference_of(own, against))


def test_the_question_that_was_asked_again():
    """On 40 seeds, and with those of the two studies before it."""
    studies = [Raw(name) for name in ("coevolution", "coevolution_again", "coevolution_sooner")]
    header, *rows = table_under(PAPER, "With bank, minus Experience only")
    assert header[1:] == ["35 earlier seeds", "40 new seeds", "all 75"]
    assert [name for name, *_ in rows] == ["averaged over training", "at the end of training"]
    for of, (_, *cells), ahead, level in zip((Raw.area, Raw.final), rows, (36, 30), (0, 2), strict=True):
        first, second, new = ((of(each, "recommended", True), of(each, "experience_only", True)) for each in studies)
        earlier = first[0] | second[0], first[1] | second[1]
        every = earlier[0] | new[0], earlier[1] | new[1]
        assert [len(own) for own, _ in (earlier, new, every)] == [35, 40, 75]
        for cell, (own, against) in zip(cells, (earlier, new, every), strict=True):
            agree(cell, difference_of(own, against))
        pairs = [(new[0][seed], new[1][seed]) for seed in new[0]]
        assert sum(own > against for own, against in pairs) == ahead
        assert sum(own == against for own, against in pairs) == level
    alone = Raw("coevolution_sooner")
    alone.last = 1
    (told,) = re.findall(r"round 40 alone, at equal games, is ([^)]*\])\.", PAPER)
    agree(told, difference_of(alone.final("recommended", True), alone.final("experience_only", True)))


def test_the_lead_averaged_over_a_budget():
    """By pair, up to the smaller of its two totals; in the last column all seeds."""
    header, *rows = table_under(PAPER, "Averaged over a budget, with bank, minus Experience only")
    assert header[1:] == ["10 seeds", "25 other seeds", "40 new seeds", "all 75"]
    assert [name for name, *_ in rows] == list(BUDGETS)[:3]  # nobody noted seconds then
    for name, *cells in rows:
        column, studies = BUDGETS[name], []
        for raw in map(Raw, ("coevolution", "coevolution_again", "coevolution_sooner")):
            pairs = [raw.curves[arm, True] for arm in ("recommended", "experience_only")]
            ends = {seed: min(runs[seed][-1][column] for runs in pairs) for seed in pairs[0]}
            own, other = ({seed: mean_until(runs[seed], column, end) for seed, end in ends.items()} for runs in pairs)
            studies.append({seed: own[seed] - other[seed] for seed in ends})
        studies.append(studies[0] | studies[1] | studies[2])
        for cell, leads in zip(cells, studies, strict=True):
            agree(cell, interval_of(leads))


@pytest.mark.parametrize(
    ("title", "of"),
    [
        ("Minus an arm of the study", Raw.final),
        ("Averaged over training, minus an arm of the study", Raw.area),
    ],
    ids=["end", "mean"],
)
def test_the_controls_beside_the_arms_that_they_are_for(title, of):
    raw, study = Raw("controls"), Raw("coevolution_again")
    page = (ROOT / "research" / PAGES["controls"]).read_text()
    header, *rows = table_under(page, title)
    assert header == ["arm", "minus", "with bank", "without bank", "pairs"]
    for name, minus, *cells, pairs in rows:
        arm, beside = raw.arm_of[name], study if minus in study.arm_of else raw
        reference = beside.arm_of[minus]
        for cell, bank in zip(cells, (True, False), strict=True):
            own, against = of(raw, arm, bank), of(beside, reference, bank) or of(beside, reference, False)
            agree(cell, difference_of(own, against) if own else None)
        assert int(pairs) == len(raw.final(arm, False))


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("realms, eight passes, 25 seeds", "coevolution_again"),
        ("SmolLM2-135M at shrines, 3 seeds", "smollm2"),
    ],
)
def test_beside_the_table_of_the_paper(column, name):
    raw = Raw(name)
    header, *rows = table_under(PAPER, "Beside the paper's Table 1")
    place = header.index(column)
    arms = {"baseline": "baseline", "experience only": "experience_only", "with self-distillation": "recommended"}
    arms |= {"baseline": "tuned", "Complementary RL": "complementary"} if name == "smollm2" else {}
    for method, *cells in rows:
        if method in arms:
            with_bank, without = cells[place - 1].split(" / ")
            for cell, bank in ((with_bank, True), (without, False)):
                agree(cell, interval_of(found) if (found := raw.final(arms[method], bank)) else None)


def test_what_self_distillation_adds():
    raw = Raw("recipes")
    for title, minus, *cells in table_under(PAPER, "What self-distillation adds")[1:]:
        arm, reference = raw.arm_of[title], raw.arm_of[minus]
        for cell, bank in zip(cells, (True, False), strict=True):
            agree(cell, difference_of(raw.final(arm, bank), raw.final(reference, bank) or raw.final(reference, False)))


def test_what_the_paper_repeats_of_trials_and_of_a_changing_world():
    header, *rows = table_under(PAPER, "After so many training games")
    raw = Raw("trials")
    for title, *cells in rows:
        for games, cell in zip(header[1:], cells, strict=True):
            agree(cell, interval_of(raw.at("training_episodes", int(games.replace(",", "")), raw.arm_of[title], True)))
    page = (ROOT / "research" / PAGES["change"]).read_text()
    columns, *there = table_under(page, "Families that change, by games since the change")
    header, *rows = table_under(PAPER, "Families that change")
    whole = {row[0]: dict(zip(columns, row, strict=True)) for row in there}
    assert rows == [[whole[row[0]][name] for name in header] for row in rows], "computed below, for that page"


def shares_of_runs(name: str, arm: str, share: str) -> dict[int, float]:
    """By seed, of the runs of an arm that have an extractor."""
    runs = duckdb.read_parquet(f"{RESULTS}/{name}_runs.parquet")
    own = runs.filter(f"arm = '{arm}' AND ({share}) IS NOT NULL AND outputs > 0")
    return dict(own.project(f"seed, {share}").fetchall())


def test_notes_that_are_true_in_the_last_bank():
    page, raw = (ROOT / "research" / PAGES["trials"]).read_text(), Raw("trials")
    for title, seeds, cell in table_under(page, "Experiences that are true, in the last bank")[1:]:
        found = shares_of_runs("trials", raw.arm_of[title], "experiences_true")
        assert int(seeds) == len(found)
        agree(cell, interval_of(found))


@pytest.mark.parametrize("name", ["change", "coevolution_sooner", "controls", "smollm2"])
def test_budget_and_extractor(name):
    page, raw = (ROOT / "research" / PAGES[name]).read_text(), Raw(name)
    runs = duckdb.read_parquet(f"{RESULTS}/{name}_runs.parquet")
    shares = {
        "malformed": "malformed / outputs",
        "return": "returned / outputs",
        "experiences true": "experiences_true",
        "families with a true experience": "coverage",
    }
    header, *rows = table_under(page, "Budget and extractor")
    for row in rows:
        told = dict(zip(header, row, strict=True))
        of_arm = runs.filter(f"arm = '{raw.arm_of[row[0]]}'")
        games, alarms = (of_arm.project(column).fetchall() for column in ("training_episodes", "alarms"))
        assert told["collapsed"] == f"{sum(bool(said) for (said,) in alarms)} of {len(games)}"
        if not games:
            continue
        low, high = min(games)[0], max(games)[0]
        assert told["training episodes per run"] == (str(low) if low == high else f"{low} to {high}")
        for column, share in shares.items():
            values = shares_of_runs(name, raw.arm_of[row[0]], share)
            agree(told[column], [float(np.mean(list(values.values())))] if values else None)


def counted(experiences: duckdb.DuckDBPyRelation, arm: str, rounds: str) -> duckdb.DuckDBPyRelation:
    """By seed: the games of an arm over some rounds, such as `1 to 10`."""
    first, last = map(int, rounds.split(" to "))
    of_arm = experiences.filter(f"arm = '{arm}' AND round BETWEEN {first} AND {last}")
    columns = [column for column in experiences.columns if column not in ("arm", "seed", "round")]
    return of_arm.aggregate(f"seed, {', '.join(f'sum({column}) AS {column}' for column in columns)}")


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("coevolution_again", "Why a trained actor adds so little to a good bank"),
        ("coevolution_sooner", "Games that were shown a true experience"),
        ("recipes_lakes", "Games that were shown a true experience"),
    ],
)
def test_games_that_were_shown_a_true_note(name, title):
    header, *rows = table_under((ROOT / "research" / PAGES[name]).read_text(), title)
    shares = ["shown / guided", "won / shown", "won_otherwise / (guided - shown)", "won_free / free"][: len(header) - 3]
    raw = duckdb.read_parquet(f"{RESULTS}/{name}_experiences.parquet")
    assert {arm for arm, *_ in rows} == {arm for (arm,) in raw.select("arm").distinct().fetchall()}
    for arm, rounds, seeds, *cells in rows:
        sums = counted(raw, arm, rounds)
        assert {seed for (seed,) in sums.select("seed").fetchall()} <= set(Raw(name).seeds)
        assert int(seeds) == len(sums)
        for share, cell in zip(shares, cells, strict=True):
            agree(cell, interval_of(dict(sums.filter(f"{share} IS NOT NULL").project(f"seed, {share}").fetchall())))


@pytest.mark.parametrize("name", ["coevolution_again", "coevolution_sooner"])
def test_a_trained_actor_beside_an_untrained_one(name):
    page = (ROOT / "research" / PAGES[name]).read_text()
    experiences = duckdb.read_parquet(f"{RESULTS}/{name}_experiences.parquet")
    for rounds, *cells in table_under(page, "Trained minus untrained")[1:]:
        for share, cell in zip(("shown / guided", "won / shown", "won / guided"), cells, strict=True):
            trained, untrained = (
                dict(counted(experiences, arm, rounds).project(f"seed, {share}").fetchall())
                for arm in ("recommended", "experience_only")
            )
            agree(cell, difference_of(trained, untrained))


@pytest.mark.parametrize("kind", list(BUDGETS))
def test_success_at_equal_budgets(study, kind):
    raw, page = study
    column = BUDGETS[kind]
    amount = min(raw.used(column))
    if f"At equal {kind}" not in page:
        unnoted = kind == "seconds of training" and amount == 0  # the runs are older than this budget
        assert unnoted or amount == max(raw.used(column)), "every run used the same amount, so there is no such table"
        return
    _, *rows = table_under(page, f"At equal {kind}: {amount:,}")
    assert [row[0] for row in rows] == [title for title, arm in raw.arm_of.items() if raw.final(arm, False)]
    for title, with_bank, without in rows:
        arm = raw.arm_of[title]
        bank, free = raw.at(column, amount, arm, True), raw.at(column, amount, arm, False)
        agree(with_bank, interval_of(bank) if bank else None)
        agree(without, interval_of(free))
    _, *rows = table_under(page, f"Paired differences at equal {kind}")
    for title, minus, *cells in rows:
        arm, reference = raw.arm_of[title], raw.arm_of[minus]
        least = min(raw.used(column, arm, reference))
        for cell, bank in zip(cells, (True, False), strict=True):
            own, against = (raw.at(column, least, each, bank) for each in (arm, reference))
            against = against or raw.at(column, least, reference, False)
            agree(cell, difference_of(own, against) if own and own.keys() & against.keys() else None)


def test_success_with_the_bank_by_training_games():
    raw, page = Raw("trials"), (ROOT / "research" / PAGES["trials"]).read_text()
    header, *rows = table_under(page, "With the bank, after so many training games")
    games = [int(cell.replace(",", "")) for cell in header[1:]]
    assert {raw.arm_of[row[0]] for row in rows} == {arm for arm, bank in raw.curves if bank}
    for title, *cells in rows:
        for amount, cell in zip(games, cells, strict=True):
            agree(cell, interval_of(raw.at("training_episodes", amount, raw.arm_of[title], True)))
    _, *rows = table_under(page, "The same, minus another arm")
    for title, minus, *cells in rows:
        for amount, cell in zip(games, cells, strict=True):
            found, against = (raw.at("training_episodes", amount, raw.arm_of[name], True) for name in (title, minus))
            agree(cell, difference_of(found, against))


def test_the_query_of_the_curves_over_real_steps(monkeypatch):
    monkeypatch.chdir(ROOT)
    (sql,) = re.findall(r"```sql\n(.*?)```", (ROOT / "research" / PAGES["recipes"]).read_text(), re.DOTALL)
    found = {(arm, bank, number): points for arm, bank, number, *points in duckdb.sql(sql).fetchall()}
    expected: dict[tuple[str, bool, int], list[tuple[float, float]]] = defaultdict(list)
    for (arm, bank), runs in Raw("recipes").curves.items():
        for points in runs.values():
            for point in points:
                expected[arm, bank, point["round"]].append((point["training_real_steps"], point["success"]))
    assert found.keys() == expected.keys()
    for place, points in expected.items():
        assert found[place] == pytest.approx([*np.mean(points, axis=0), len(points)]), place


def test_every_seed(study):
    raw, page = study
    header, *rows = table_under(page, "Every seed: with bank / without")
    for title, *cells in rows:
        for seed, cell in zip(header[1:], cells, strict=True):
            parts = cell.split(" / ") if " / " in cell else [cell, cell]  # not finished
            for part, bank in zip(parts, (True, False), strict=True):
                found = raw.final(raw.arm_of[title], bank).get(int(seed))
                agree(part, None if found is None else [found])


# What the three left out tell is computed by tests above.
@pytest.mark.parametrize("name", sorted(set(PAGES) - {"change", "coevolution", "recipes"}))
def test_what_a_page_says_stands_in_its_tables(name):
    told, marker, tables = (ROOT / "research" / PAGES[name]).read_text().partition("<!-- tables -->")
    if marker:
        intervals = re.findall(r"[+−]\d\.\d\d \[[+−]\d\.\d\d, [+−]\d\.\d\d\]", " ".join(told.split()))
        assert [each for each in intervals if each not in tables] == []


@pytest.mark.parametrize("name", ["falling", "long_runs", "long_runs_again"])
def test_from_the_best_to_the_end(name):
    raw, page = Raw(name), (ROOT / "research" / PAGES[name]).read_text()
    for title, *cells in table_under(page, "From the best to the end")[1:]:
        for bank, (best, end, fall) in ((True, cells[:3]), (False, cells[3:])):
            peaks, ends = raw.best(raw.arm_of[title], bank), raw.final(raw.arm_of[title], bank)
            agree(best, [interval_of(peaks)[0]] if peaks else None)
            agree(end, [interval_of(ends)[0]] if ends else None)
            agree(fall, difference_of(ends, peaks) if ends else None)
