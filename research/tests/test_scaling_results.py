"""What research/scaling.md says beside the tables of its study, from its raw results."""

import numpy as np
import pytest

from research.tests.raw_results import PAGES, ROOT, Raw, agree, difference_of, interval_of, table_under

REALMS, NOISE = "number of realms", "temperature of written experiences"
PAGE = (ROOT / "research" / PAGES["scale"]).read_text()


@pytest.fixture(scope="module")
def raw():
    return Raw("scale")


def slope(logs, runs):
    """By seed, the slope of the line through its values; all values have the same seeds."""
    assert len({frozenset(each) for each in runs}) == 1
    return {seed: np.cov(logs, [each[seed] for each in runs])[0, 1] / np.var(logs, ddof=1) for seed in runs[0]}


def test_what_a_doubling_changes(raw):
    """The slope on the logarithm of the value is fitted per seed; intervals are over seeds."""
    header, *rows = table_under(PAGE, "Per doubling")
    assert header == ["doubled", "arm", "with bank", "without bank"]

    def slopes(scale, arm, bank):
        values, keys = zip(*raw.scales[scale][arm], strict=True)
        return slope(np.log2([float(value) for value in values]), [raw.final(key, bank) for key in keys])

    for scale, arm, *cells in rows:
        first, _, other = arm.partition(", minus ")
        for cell, bank in zip(cells, (True, False), strict=True):
            if cell == "–":
                assert not all(raw.final(key, bank) for _, key in raw.scales[scale][first])
                continue
            found = slopes(scale, first, bank)
            agree(cell, difference_of(found, slopes(scale, other, False)) if other else interval_of(found))


def minus(own, other):
    return {seed: value - other[seed] for seed, value in own.items()}


def test_contrasts(raw):
    trained, untrained, baseline = "Self-distillation", "Experience only", "Baseline, tuned"

    def at(value, bank, arm=trained, scale=REALMS):
        return raw.final(dict(raw.scales[scale][arm])[value], bank)

    def lead(value):
        return minus(at(value, False), at(value, False, baseline))

    def noisy(value):
        return minus(at(value, True, scale=NOISE), at(value, True, untrained, NOISE))

    expected = {
        "lead without bank over the baseline, 8 realms minus 2": minus(lead("8"), lead("2")),
        "lead without bank over the baseline, 32 realms minus 16": minus(lead("32"), lead("16")),
        "self-distillation without bank, 4 realms minus 2": minus(at("4", False), at("2", False)),
        "self-distillation without bank, 32 realms minus 16": minus(at("32", False), at("16", False)),
        "self-distillation minus experience only, with bank: temperature 1.3 minus 1": minus(noisy("1.3"), noisy("1")),
    }
    expected |= {
        f"self-distillation with bank minus without, {value} realms": minus(at(value, True), at(value, False))
        for value in ("2", "4", "8", "16", "32")
    }
    rows = table_under(PAGE, "Contrasts")[1:]
    assert {name for name, _ in rows} == set(expected)
    for name, cell in rows:
        agree(cell, interval_of(expected[name]))


def test_after_as_many_games_per_rule(raw):
    """A round has 64 games per rule with 2 realms, 8 with 16."""
    header, *rows = table_under(PAGE, "After 320 games per rule")
    assert header == ["arm", "2", "4", "8", "16", "per doubling"]
    assert [row[0].split(", ")[-1] for row in rows] == ["with bank", "without bank", "tuned", "with bank"]
    for name, *cells, last in rows:
        arm = next(each for each in raw.scales[REALMS] if name.startswith(each))
        keys, bank = dict(raw.scales[REALMS][arm]), name.endswith("with bank")
        found = []
        for realms, cell in zip(header[1:-1], cells, strict=True):
            played = {
                seed: next(each["success"] for each in points if each["round"] * 128 == 320 * int(realms))
                for seed, points in raw.curves[keys[realms], bank].items()
            }
            agree(cell, interval_of(played))
            found.append(played)
        agree(last, interval_of(slope([1, 2, 3, 4], found)))


def test_the_paper_repeats_it():
    paper = (ROOT / "research" / "study.md").read_text()
    doubled = [cells for scale, *cells in table_under(PAGE, "Per doubling")[1:] if scale == REALMS]
    assert doubled == table_under(paper, "Per doubling of the realms")[1:]
