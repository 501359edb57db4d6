"""The headline of the README and of the pages: every metric and every line, from the recorded results again."""

import re
from collections import defaultdict

import numpy as np
import pytest

import benchmarks.headline as headline
from research.tests.raw_results import ROOT, Raw, agree, difference_of

HEADLINE = [ROOT / "README.md"]


@pytest.mark.parametrize("page", HEADLINE, ids=[page.name for page in HEADLINE])
def test_the_headline_is_told_whole(page):
    """Per game and per generated token, with the bank and without, both methods, every seed."""
    raw, text = Raw("smollm2"), page.read_text()
    words = " ".join(text.split())
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.split("<!-- from recorded results -->\n\n", 1)[1].split("\n\n", 1)[0].splitlines()
    )
    assert header == ["held-out success minus GRPO's", "with its bank", "each seed", "without its bank", "each seed"]
    arms = {"with self-distillation": "recommended", "as in the paper": "complementary"}
    told = [(arms[re.search(r"Complementary RL ([^,]*)", row[0])[1]], "per game" in row[0]) for row in rows]
    assert told == [(arm, per_game) for per_game in (True, False) for arm in arms.values()]
    for (arm, per_game), (_, *cells) in zip(told, rows, strict=True):
        tokens = min(raw.used("training_tokens", arm, "tuned"))
        for place, bank in ((0, True), (2, False)):
            own, other = (
                raw.final(name, bank) if per_game else raw.at("training_tokens", tokens, name, bank)
                for name, bank in ((arm, bank), ("tuned", False))
            )
            assert sorted(own) == sorted(other) == [251, 252, 253], "no seed that was run is left out"
            agree(cells[place], difference_of(own, other))
            agree(cells[place + 1], [own[seed] - other[seed] for seed in sorted(own)])
        assert f"(at {tokens:,}," in text
        used = [[raw.curves[name, False][seed][-1]["training_tokens"] for seed in own] for name in (arm, "tuned")]
        ratios = [mine / others for mine, others in zip(*used, strict=True)]
        assert {round(ratio) for ratio in ratios} <= {7, 8} and "seven to eight times as many tokens" in words
        assert {raw.curves[name, False][seed][-1]["training_episodes"] for name in (arm, "tuned") for seed in own} == {
            768
        }


def test_the_picture_draws_every_seed():
    assert headline.PICTURE.read_text() == headline.picture(), "write it anew: python benchmarks/headline.py"
    for page in HEADLINE:
        assert headline.inserted(page.read_text(), headline.table()) == page.read_text(), (
            "write it anew: python benchmarks/headline.py"
        )
        assert "learning.svg" in page.read_text()
    raw = Raw("smollm2")
    lines = re.findall(
        r'<polyline [^>]*data-arm="(\w+)" data-seed="(\d+)" points="([^"]*)"[^>]*><title>([^<]*)</title>',
        headline.picture(),
    )
    drawn = defaultdict(list)
    for arm, seed, points, title in lines:
        heights = [float(point.split(",")[1]) for point in points.split()]
        drawn[arm, int(seed)].append((heights, title))
    assert drawn.keys() == {
        (arm, seed) for arm in ("recommended", "complementary", "tuned") for seed in (251, 252, 253)
    }
    for (arm, seed), panels in drawn.items():
        assert len(panels) == 4
        for (heights, title), bank in zip(panels, (True, False, True, False), strict=True):
            points = raw.curves[arm, bank and arm != "tuned"][seed]
            shares = [point["success"] for point in points][-len(heights) :]
            assert f"{100 * shares[-1]:.0f} %" in title and f"{points[-1]['training_tokens']:,} generated" in title
            # Equal steps of success are equal steps of height.
            assert np.allclose(np.diff(heights), -200 * np.diff(shares), atol=0.11)
