"""The headline of README.md, from the recorded results of the study of SmolLM2-135M.

    python benchmarks/headline.py

Writes docs/learning.svg, which draws every seed, and the table behind the line `<!-- from recorded results -->` of that
page. `crl compare conf/study/smollm2.yaml` makes the runs; research/results/smollm2.parquet has what they won.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
from scipy import stats

ROOT = Path(__file__).parents[1]
RESULTS, PICTURE = ROOT / "research/results/smollm2.parquet", ROOT / "docs/learning.svg"
PAGES = (ROOT / "README.md",)
STYLE = ROOT / "crl/report/templates/chart.css"
SEEDS = (251, 252, 253)
METHODS = {
    "recommended": "Complementary RL with self-distillation",
    "complementary": "Complementary RL as in the paper",
}
REFERENCE = "tuned"
"""GRPO alone on as many games; its learning rate and passes were tuned on another seed."""
GAMES, TOKENS = "training_episodes", "training_tokens"
LAST = 3
"""Evaluations at the end of training whose mean counts, as in the study."""
PLACE = "<!-- from recorded results -->"


@dataclass(frozen=True)
class Curve:
    """Held-out success of one run, by what it had used in training."""

    games: Sequence[int]
    tokens: Sequence[int]
    success: Sequence[float]

    @property
    def end(self) -> float:
        """Success at the end of training."""
        return float(np.mean(self.success[-LAST:]))

    def at(self, tokens: float) -> float:
        """Success after so many generated tokens, on straight lines between evaluations."""
        return float(np.interp(tokens, self.tokens, self.success))


def curve(arm: str, seed: int, *, bank: bool) -> Curve:
    """The recorded evaluations of one run, with its bank or without."""
    table = pq.read_table(RESULTS)
    mine = pc.and_(pc.equal(table["arm"], arm), pc.and_(pc.equal(table["seed"], seed), pc.equal(table["bank"], bank)))
    rows = table.filter(mine).sort_by("round")
    success = pc.divide(pc.cast(rows["successes"], "double"), rows["episodes"])
    return Curve(rows[GAMES].to_pylist(), rows[TOKENS].to_pylist(), success.to_pylist())


def budget(arm: str) -> int:
    """Generated tokens that the most frugal run of an arm and of GRPO used in all."""
    return min(curve(each, seed, bank=False).tokens[-1] for each in (arm, REFERENCE) for seed in SEEDS)


def leads(arm: str, *, bank: bool, per_token: bool) -> list[float]:
    """By seed: the share of held-out games that an arm wins, minus that of GRPO, which has no bank."""
    runs = [(curve(arm, seed, bank=bank), curve(REFERENCE, seed, bank=False)) for seed in SEEDS]
    if per_token:
        tokens = budget(arm)
        return [own.at(tokens) - other.at(tokens) for own, other in runs]
    return [own.end - other.end for own, other in runs]


def table() -> str:
    """The leads over GRPO as Markdown: per game and per generated token, with the bank and without, every seed."""
    lines = ["| held-out success minus GRPO's | with its bank | each seed | without its bank | each seed |"]
    lines.append("|---" * 5 + "|")
    for per_token in (False, True):
        for arm, title in METHODS.items():
            cells = [f"{title}, **per {'generated token' if per_token else 'game'}**"]
            for bank in (True, False):
                found = leads(arm, bank=bank, per_token=per_token)
                cells += [interval(found), ", ".join(map(signed, found))]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def interval(values: Sequence[float]) -> str:
    """The mean with its 95 % interval (Student's t)."""
    low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    return f"{signed(float(np.mean(values)))} [{signed(low)}, {signed(high)}]"


def signed(value: float) -> str:
    """`+0.43`, `−0.02`"""
    return f"{value:+.2f}".replace("-", "−")


# -- the picture -------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 340, 200
"""Pixels of the area of one panel."""
_LEFT, _TOP, _GAP, _BELOW = 58, 112, 40, 82
_COLORS = {"recommended": "c0", "complementary": "c1", REFERENCE: "c2"}
_DASHES = {"recommended": "", "complementary": "7 4", REFERENCE: "2 3"}
_NAMES = {**METHODS, REFERENCE: "GRPO alone (has no bank)"}
_LEAST, _MOST = 50, 12_500
"""Ends of the axis of tokens, which is logarithmic."""


def picture() -> str:
    """Held-out success by training games, and by generated tokens: every seed is a line."""
    width = _LEFT + 2 * _WIDTH + _GAP + 20
    height = _TOP + 2 * (_HEIGHT + _BELOW) - 28
    told = (
        "Held-out games won by three seeds each of Complementary RL with self-distillation, Complementary RL as in the "
        "paper, and GRPO alone, by training games and by generated tokens, with the bank and without. " + summary()
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{escape(told)}" font-size="13"><style>{STYLE.read_text(encoding="utf-8")}</style>',
        _text(_LEFT, 20, "Held-out games won: SmolLM2-135M, every one of three seeds", weight="bold", size=15),
    ]
    for place, arm in enumerate(_NAMES):
        x, y = (_LEFT, _LEFT + 330)[place % 2], 44 + 20 * (place // 2)
        parts.append(f'<path d="M{x} {y - 4}h30" {_stroke(arm)}/>')
        parts.append(_text(x + 38, y, _NAMES[arm]))
    for row, per_token in enumerate((False, True)):
        for column, bank in enumerate((True, False)):
            parts += _panel(_LEFT + column * (_WIDTH + _GAP), _TOP + row * (_HEIGHT + _BELOW), bank, per_token)
    return "".join([*parts, "</svg>"]) + "\n"


def summary() -> str:
    """The leads in words, for those who cannot see the picture."""
    told = []
    for per_token in (False, True):
        for arm, title in METHODS.items():
            both = [interval(leads(arm, bank=bank, per_token=per_token)) for bank in (True, False)]
            counted = "generated token" if per_token else "game"
            told.append(f"{title} minus GRPO per {counted}: {both[0]} with its bank, {both[1]} without.")
    return " ".join(told)


def _panel(x: int, y: int, bank: bool, per_token: bool) -> list[str]:
    def across(amount: float) -> float:
        if not per_token:
            return x + _WIDTH * amount / 768
        return x + _WIDTH * math.log(max(amount, _LEAST) / _LEAST) / math.log(_MOST / _LEAST)

    def up(share: float) -> float:
        return y + _HEIGHT * (1 - share)

    counted = "per generated token" if per_token else "per game"
    parts = [_text(x, y - 10, f"{'With' if bank else 'Without'} the bank, {counted}", weight="bold")]
    for percent in (0, 25, 50, 75, 100):
        parts.append(f'<path d="M{x} {up(percent / 100):.1f}h{_WIDTH}" stroke="var(--grid)" fill="none"/>')
        if bank:
            parts.append(_text(x - 8, up(percent / 100) + 4, f"{percent} %", anchor="end", faint=True))
    ticks = (50, 200, 1000, 5000) if per_token else (0, 192, 384, 576, 768)
    parts += [_text(across(tick), y + _HEIGHT + 18, f"{tick:,}", anchor="middle", faint=True) for tick in ticks]
    axis = "tokens generated in training (logarithmic)" if per_token else "games played in training"
    parts.append(_text(x + _WIDTH / 2, y + _HEIGHT + 36, axis, anchor="middle", faint=True))
    if per_token:
        parts.append(
            f'<path d="M{across(budget("recommended")):.1f} {y}v{_HEIGHT}" stroke="var(--faint)" fill="none"/>'
        )
        parts.append(_text(across(budget("recommended")) - 6, y + 14, "compared here", anchor="end", faint=True))
    for arm in _NAMES:
        for seed in SEEDS:
            run = curve(arm, seed, bank=bank and arm != REFERENCE)
            used = run.tokens if per_token else run.games
            points = [(across(amount), up(won)) for amount, won in zip(used, run.success, strict=True)
                      if not per_token or amount >= _LEAST]  # fmt: skip
            drawn = " ".join(f"{left:.1f},{top:.1f}" for left, top in points)
            told = f"{_NAMES[arm]}, seed {seed}: {100 * run.success[-1]:.0f} % after {run.games[-1]} games"
            parts.append(
                f'<polyline class="line" data-arm="{arm}" data-seed="{seed}" points="{drawn}" {_stroke(arm)}>'
                f"<title>{escape(told)}, {run.tokens[-1]:,} generated tokens</title></polyline>"
            )
    return parts


def _stroke(arm: str) -> str:
    dashes = f' stroke-dasharray="{_DASHES[arm]}"' if _DASHES[arm] else ""
    return f'fill="none" stroke="var(--{_COLORS[arm]})" stroke-width="2"{dashes}'


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal", size: int = 13, faint: bool = False
) -> str:
    color = "var(--faint)" if faint else "var(--text)"
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" font-size="{size}" '
        f'fill="{color}">{escape(text)}</text>'
    )


def inserted(text: str, rows: str, mark: str = PLACE) -> str:
    """A page with the table behind its mark replaced. Raises ValueError where it has no mark for one."""
    place = re.compile(rf"({re.escape(mark)}\n\n)(?:\|.*\n)*")
    if len(place.findall(text)) != 1:
        raise ValueError(f"a page has no line {mark}, or several")
    return place.sub(lambda match: f"{match[1]}{rows}\n", text)


def main() -> None:
    """See the module docstring."""
    PICTURE.write_text(picture(), encoding="utf-8")
    for page in PAGES:
        page.write_text(inserted(page.read_text(encoding="utf-8"), table()), encoding="utf-8")
    print(table())


if __name__ == "__main__":
    main()
