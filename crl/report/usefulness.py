"""How useful the entries of a bank have been: how the episodes that each guided ended, with what chance leaves open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pyarrow as pa

from crl.records import EntryScore, rows_of, rows_with
from crl.report.charts import Bar, Chart, bar_chart
from crl.report.rates import Rate, wilson

if TYPE_CHECKING:
    from crl.bank.snapshot import Snapshot
    from crl.run.directory import RunDirectory

LISTED = 10
"""Most helpful entries, most harmful ones, and most used ones."""
_STAGE = "credit"
_OUTCOMES = ("0 %", "1–39 %", "40–60 %", "61–99 %", "100 %")
"""Classes of the share of episodes won."""
_HALF = (0.4, 0.6)
"""Bounds of the middle class, which holds both."""
_USES = ((1, "1"), (2, "2–4"), (5, "5–15"), (16, "16+"))
"""Classes of uses: smallest number, name."""
_RAMP = 11


@dataclass(frozen=True, slots=True)
class Standing:
    """One entry of the bank that has guided episodes in its present words."""

    entry_id: str
    family: str
    text: str
    last_used_round: int
    episodes: Rate
    """Of those it guided, the ones that were won."""

    @property
    def mean(self) -> float:
        """Mean outcome, −1 to +1."""
        return 2 * self.episodes.successes / self.episodes.episodes - 1

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean outcome."""
        low, high = wilson(self.episodes.successes, self.episodes.episodes)
        return 2 * low - 1, 2 * high - 1


@dataclass(frozen=True, slots=True)
class Usefulness:
    """The bank after a round by what its entries were good for."""

    round: int
    entries: int
    used: int
    """Of them, those that have guided an episode with the text that they have."""
    gone: int
    """Entries that guided an episode and have left the bank, or were rewritten since."""
    charts: Sequence[Chart]
    helpful: Sequence[Standing]
    """Those whose interval is above 0, the surest first: by its lower end."""
    harmful: Sequence[Standing]
    """Those whose interval is below 0, likewise by its upper end."""
    most_used: Sequence[Standing]
    """Those with the most uses, whatever their outcome."""
    open: int
    """Used entries whose interval holds 0: nothing is known of them yet."""


def usefulness(run: RunDirectory) -> Usefulness | None:
    """The usefulness of the newest bank that has scores; None where no experience has been used.

    Raises RecordDamaged.
    """
    from crl.bank.segments import load_texts
    from crl.rounds.recipe import recipe_in, recorded_bank

    newest = next((number for number in reversed(run.rounds()) if run.is_complete(number, _STAGE)), None)
    scores = [] if newest is None else rows_of(EntryScore, run.read(newest, _STAGE, EntryScore))
    if newest is None or not scores:
        return None
    recipe = recipe_in(run)
    return judge(recorded_bank(run, recipe, newest), scores, partial(load_texts, run.path))


def judge(
    bank: Snapshot, scores: Sequence[EntryScore], texts_of: Callable[[pa.Table], Mapping[str, str]]
) -> Usefulness:
    """Usefulness of a bank's entries from their scores. `texts_of` gives texts of rows by content digest.

    Raises what `texts_of` does.
    """
    held = bank.digests_of([score.entry_id for score in scores])
    own = {score.entry_id: score for score, digest in zip(scores, held, strict=True) if score.content_digest == digest}
    rows = rows_with(bank.table, "entry_id", own)
    names = rows["entry_id"].to_pylist()
    rates = {name: _episodes(own[name]) for name in names}
    bounds = {name: wilson(rates[name].successes, rates[name].episodes) for name in names}
    # A share of one half is a mean outcome of 0.
    helpful = sorted((name for name in names if bounds[name][0] > 0.5), key=lambda name: (-bounds[name][0], name))
    harmful = sorted((name for name in names if bounds[name][1] < 0.5), key=lambda name: (bounds[name][1], name))
    most_used = sorted(names, key=lambda name: (-rates[name].episodes, name))
    best, worst, used = helpful[:LISTED], harmful[:LISTED], most_used[:LISTED]
    listed = rows_with(rows, "entry_id", [*best, *worst, *used])
    texts = texts_of(listed)
    standing = {
        row["entry_id"]: Standing(
            row["entry_id"], row["family"], texts[row["content_digest"]],
            own[row["entry_id"]].last_used_round, rates[row["entry_id"]],
        )
        for row in listed.select(["entry_id", "family", "content_digest"]).to_pylist()
    }  # fmt: skip
    return Usefulness(
        bank.round,
        len(bank),
        len(names),
        len(scores) - len(names),
        [_by_outcome(rates.values()), _by_uses(rates.values(), len(bank) - len(names))],
        [standing[name] for name in best],
        [standing[name] for name in worst],
        [standing[name] for name in used],
        len(names) - len(helpful) - len(harmful),
    )


def _by_uses(rates: Iterable[Rate], unused: int) -> Chart:
    counts = [unused, *(0 for _ in _USES)]
    for rate in rates:
        counts[1 + _uses(rate)] += 1
    names = ["none", *(name for _, name in _USES)]
    bars = [Bar(place, [float(count)], name) for place, (count, name) in enumerate(zip(counts, names, strict=True))]
    return bar_chart("entries by how often they were used", [("entries", 2)], bars, axis="episodes guided", named=True)


def _by_outcome(rates: Iterable[Rate]) -> Chart:
    heights = [[0.0] * len(_USES) for _ in _OUTCOMES]
    for rate in rates:
        heights[_outcome(rate)][_uses(rate)] += 1
    return bar_chart(
        "entries by the share of their episodes won",
        [(f"used {name}×" if place == 0 else name, _RAMP + place) for place, (_, name) in enumerate(_USES)],
        [Bar(place, heights[place], name) for place, name in enumerate(_OUTCOMES)],
        axis="won",
        named=True,
    )


def _uses(rate: Rate) -> int:
    return max(place for place, (least, _) in enumerate(_USES) if rate.episodes >= least)


def _outcome(rate: Rate) -> int:
    if rate.successes in (0, rate.episodes):
        return 4 if rate.successes else 0
    return 1 if _won(rate) < _HALF[0] else 2 if _won(rate) <= _HALF[1] else 3


def _episodes(score: EntryScore) -> Rate:
    """Outcomes are +1 or −1, so their mean and number tell how many were won."""
    return Rate(round(score.uses * (1 + score.mean_outcome) / 2), score.uses)


def _won(rate: Rate) -> float:
    return rate.successes / rate.episodes
