"""What grows per doubling in docs/scaling.md, from its raw results."""

import numpy as np

from tests.docs.raw_results import PAGES, ROOT, Raw, agree, difference_of, interval_of, table_under


def test_what_a_doubling_changes():
    """The slope on the logarithm of the value is fitted per seed; intervals are over seeds."""
    raw, page = Raw("scale"), (ROOT / "docs" / PAGES["scale"]).read_text()
    header, *rows = table_under(page, "Per doubling")
    assert header == ["doubled", "arm", "with bank", "without bank"]

    def slopes(scale, arm, bank):
        values, keys = zip(*raw.scales[scale][arm], strict=True)
        runs = [raw.final(key, bank) for key in keys]
        logs = np.log2([float(value) for value in values])
        # All values have the same seeds, or the line is not one of the same runs.
        assert len({frozenset(each) for each in runs}) == 1
        return {seed: np.cov(logs, [each[seed] for each in runs])[0, 1] / np.var(logs, ddof=1) for seed in runs[0]}

    for scale, arm, *cells in rows:
        first, _, other = arm.partition(", minus ")
        for cell, bank in zip(cells, (True, False), strict=True):
            if cell == "–":
                assert not all(raw.final(key, bank) for _, key in raw.scales[scale][first])
                continue
            found = slopes(scale, first, bank)
            agree(cell, difference_of(found, slopes(scale, other, False)) if other else interval_of(found))


def test_the_paper_repeats_it():
    page, paper = ((ROOT / "docs" / name).read_text() for name in (PAGES["scale"], "study.md"))
    doubled = [cells for scale, *cells in table_under(page, "Per doubling")[1:] if scale == "number of realms"]
    assert doubled == table_under(paper, "Per doubling of the realms")[1:]
