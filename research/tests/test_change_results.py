"""The tables of research/change.md that tell families that change from those that stay, from its raw results."""

import itertools
from collections import defaultdict

import duckdb
import numpy as np
import pytest

from research.tests.raw_results import PAGES, RESULTS, ROOT, Raw, agree, difference_of, interval_of, table_under


def reached_of(curves: list[dict[int, float]], before: list[float], first: int) -> str:
    """Median rounds in the changed world up to the first of two successive evaluations at nine tenths of before."""
    found = []
    for curve, level in zip(curves, before, strict=True):
        later = [(number, value) for number, value in sorted(curve.items()) if number >= first]
        back = [a for (a, x), (_, y) in itertools.pairwise(later) if level and min(x, y) >= 0.9 * level]
        found.append(back[0] - first + 1 if back else np.inf)
    some, median = int(np.isfinite(found).sum()), np.median(found)
    text = f"{median:g}" if np.isfinite(median) else "not reached"
    return text if some == len(found) else f"{text} ({some} of {len(found)} seeds)"


def curves_of(part: str, bank: bool) -> dict[str, dict[int, dict[int, float]]]:
    """By arm, seed and round. With an empty bank, in round 0, an evaluation with it is one without it."""
    rows = duckdb.sql(f"SELECT * FROM '{RESULTS}/change_families.parquet' WHERE families = '{part}'").fetchall()
    has_bank = {row[0] for row in rows if row[4]}
    curves: dict[str, dict[int, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
    for arm, seed, number, _, with_bank, successes, episodes, *_ in sorted(rows, key=lambda row: row[4]):
        if with_bank <= bank and (not bank or arm in has_bank):
            curves[arm][seed][number] = successes / episodes
    return curves


@pytest.mark.parametrize(("part", "words"), [("changed", "change"), ("stayed", "stay")])
@pytest.mark.parametrize("bank", [True, False])
def test_families_around_a_change(part, words, bank):
    raw, page, first = Raw("change"), (ROOT / "research" / PAGES["change"]).read_text(), 31
    curves = curves_of(part, bank)
    header, *table = table_under(page, f"Families that {words}, {'with' if bank else 'without'} bank")
    assert header == ["arm", "before the change", "after it", "at the end", "rounds to recover"]
    assert [raw.arm_of[row[0]] for row in table] == [arm for arm in raw.arm_of.values() if arm in curves]
    for title, before, after, end, rounds in table:
        runs = list(curves[raw.arm_of[title]].values())
        early = [np.mean([run[number] for number in sorted(run) if number < first][-raw.last :]) for run in runs]
        agree(before, interval_of(dict(enumerate(early))))
        agree(after, interval_of({place: run[min(n for n in run if n >= first)] for place, run in enumerate(runs)}))
        agree(end, interval_of({place: np.mean([run[n] for n in sorted(run)][-2:]) for place, run in enumerate(runs)}))
        assert rounds == reached_of(runs, early, first), title


def test_what_a_change_costs():
    """Means over the games since the change that every run has."""
    raw, page = Raw("change"), (ROOT / "research" / PAGES["change"]).read_text()
    games = {
        (arm, seed, point["round"]): point["training_episodes"]
        for (arm, _), runs in raw.curves.items()
        for seed, points in runs.items()
        for point in points
    }
    curves = {arm: curves_of("changed", True).get(arm) or curves_of("changed", False)[arm] for arm, _ in raw.curves}
    since = {
        (arm, seed): [(games[arm, seed, after] - games[arm, seed, 30], won) for after, won in run.items() if after > 30]
        for arm, runs in curves.items()
        for seed, run in runs.items()
    }
    first, last = max(min(points)[0] for points in since.values()), min(max(points)[0] for points in since.values())
    assert f"from {first} to {last:,} since the change" in page

    def means(title: str) -> dict[int, float]:
        found = {}
        for (arm, seed), points in since.items():
            if arm == raw.arm_of[title]:
                played, won = zip(*sorted(points), strict=True)
                at = np.linspace(first, last, 20_001)
                found[seed] = float(np.interp(at, played, won).mean())
        return found

    header, *table = table_under(page, "Families that change, by games since the change")
    for title, mean, *differences in table:
        agree(mean, interval_of(means(title)))
        for name, cell in zip(header[2:], differences, strict=True):
            reference = name.removeprefix("minus ")
            agree(cell, difference_of(means(title), means(reference)) if title != reference else None)


def test_notes_around_a_change():
    raw, page = Raw("change"), (ROOT / "research" / PAGES["change"]).read_text()
    header, *table = table_under(page, "Experiences of families that change")
    places = {"before": 30, "after": 32, "at the end": 60}
    assert [raw.arm_of[row[0]] for row in table] == [
        arm for arm, bank in raw.curves if bank and arm in raw.arm_of.values()
    ]
    for title, *cells in table:
        for name, cell in zip(header[1:], cells, strict=True):
            what, when = name.split(" ", 1)
            found = duckdb.sql(
                f"""SELECT seed, "{what}" / entries FROM '{RESULTS}/change_families.parquet'
                WHERE arm = '{raw.arm_of[title]}' AND round = {places[when]} AND entries IS NOT NULL"""
            ).fetchall()
            agree(cell, interval_of(dict(found)))
