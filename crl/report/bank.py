"""What the bank held after a round: chosen rows of one snapshot, with their texts and their results so far.

Only the round asked for is read (its base and the changes since), and texts of the rows shown only: it is as quick for
a large bank as for a small one, and damage in another round does not show. It is searched by meaning, with the embedder
that the run retrieves with, or by words; counters and diversification (eq. 6) are left out: a search shows what is
near, not what would be chosen. :func:`usefulness` tells how the episodes that each entry guided ended.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from crl.bank.segments import load_embeddings, load_texts
from crl.bank.snapshot import Snapshot
from crl.errors import BadInput
from crl.paths import quoted
from crl.protocols import Embedder
from crl.records import EntryScore, RetrievalCount, Row, rows_of, rows_with
from crl.report.charts import Bar, Chart, bar_chart
from crl.report.success import Rate, wilson
from crl.rounds.bank_tables import publishing_stage
from crl.rounds.recipe import recipe_in, recorded_bank
from crl.rounds.stage import PUBLISHES, Recipe, draws_of
from crl.run.directory import RunDirectory

R = TypeVar("R", bound=Row)
_WORD = re.compile(r"\w+")
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
class ShownEntry:
    """One entry of a snapshot, with its usefulness so far."""

    entry_id: str
    family: str
    version: int
    created_round: int
    updated_round: int
    text: str
    retrieved: int
    """Times chosen to guide an episode, in any words, up to that round."""
    uses: int
    """Episodes credited that the text guided."""
    mean_outcome: float | None
    """Mean of +1 / −1 over these; None without any."""
    embedder_cut: bool
    """Whether the embedder reads only the beginning of the text, by which alone it is found."""


class BankAfter:
    """The bank after a round, and the results of its entries up to then."""

    def __init__(self, run: RunDirectory, round_number: int | None = None) -> None:
        """The newest published one where `round_number` is None. Raises BadInput where there is none."""
        self.run, self.recipe = run, recipe_in(run)
        self.round = banked_round(run, self.recipe, round_number)
        self.snapshot: Snapshot = recorded_bank(run, self.recipe, self.round)

    def rows(self, family: str | None = None) -> NDArray[np.int64]:
        """Rows of a family, all for None. Raises BadInput for a family that the run does not have."""
        if family is None:
            return np.arange(len(self.snapshot), dtype=np.int64)
        held = self.snapshot.table["family"]
        known = {*(each.name for each in self.run.method.families), *pc.unique(held).to_pylist()}
        if family not in known:
            raise BadInput(
                f"{self.run.path} has no task family {family!r}", expected=f"one of {', '.join(sorted(known))}"
            )
        return np.flatnonzero(pc.equal(held, family).to_numpy()).astype(np.int64)

    def sorted(self, rows: NDArray[np.int64], order: str) -> NDArray[np.int64]:
        """The rows in an order, ties with the oldest first: age; newest (text written last first); uses (most first);
        credit or harm (highest or lowest mean outcome first, what was never used last)."""
        if order == "age":
            return rows
        if order == "newest":
            keys = -self.snapshot.table["updated_round"].to_numpy()[rows]
            return rows[np.lexsort((-rows, keys))]
        uses, mean = self.uses_N[rows], self.mean_outcome_N[rows]
        if order == "uses":
            return rows[np.argsort(-uses, kind="stable")]
        sign = -1.0 if order == "credit" else 1.0
        return rows[np.lexsort((-uses, np.where(uses > 0, sign * mean, np.inf)))]

    def table(self, rows: NDArray[np.int64]) -> pa.Table:
        """The rows as columns of `BankEntry`."""
        return self.snapshot.table.take(pa.array(rows))

    def texts(self, rows: NDArray[np.int64]) -> list[str]:
        """Texts of the rows. Raises RecordDamaged."""
        table = self.table(rows)
        by_digest = load_texts(self.run.path, table)
        return [by_digest[digest] for digest in table["content_digest"].to_pylist()]

    def embeddings(self, rows: NDArray[np.int64]) -> NDArray[np.float32]:
        """Embeddings [N, D] of the rows. Raises RecordDamaged."""
        return load_embeddings(self.run.path, self.table(rows))

    def entries(self, rows: NDArray[np.int64]) -> list[ShownEntry]:
        """The rows as people read them."""
        names = ("entry_id", "family", "version", "created_round", "updated_round", "embedder_cut")
        table = self.table(rows).select(names).to_pylist()
        texts, retrieved = self.texts(rows), self.retrieved_N[rows].tolist()
        uses, mean = self.uses_N[rows].tolist(), self.mean_outcome_N[rows].tolist()
        return [
            ShownEntry(**row, text=text, retrieved=count, uses=used, mean_outcome=outcome if used else None)
            for row, text, count, used, outcome in zip(table, texts, retrieved, uses, mean, strict=True)
        ]

    @cached_property
    def retrieved_N(self) -> NDArray[np.int64]:
        """Times every entry was chosen to guide an episode."""
        counts = self._newest(RetrievalCount, "plan")
        return self._column({row.entry_id: row.count for row in counts}).astype(np.int64)

    @cached_property
    def uses_N(self) -> NDArray[np.int64]:
        """Credited uses of every entry in its present words."""
        return self._column({row.entry_id: row.uses for row in self._scores}).astype(np.int64)

    @cached_property
    def mean_outcome_N(self) -> NDArray[np.float64]:
        """Mean outcome of these uses; 0 without any."""
        return self._column({row.entry_id: row.mean_outcome for row in self._scores})

    @cached_property
    def _scores(self) -> list[EntryScore]:
        """Those of the texts that the bank has."""
        scores = self._newest(EntryScore, "credit")
        held = self.snapshot.digests_of([score.entry_id for score in scores])
        return [score for score, digest in zip(scores, held, strict=True) if score.content_digest == digest]

    def _newest(self, row_type: type[R], stage: str) -> list[R]:
        """Cumulative rows of the newest round up to this one whose stage is complete: a round publishes its bank before
        it is credited."""
        for number in range(self.round, 0, -1):
            if self.run.is_complete(number, stage):
                draws = draws_of(stage, self.run.complete_stages(number))
                return [row for name in draws for row in rows_of(row_type, self.run.read(number, name, row_type))]
        return []

    def _column(self, values: Mapping[str, float]) -> NDArray[np.float64]:
        """One value per row, from values by entry id; 0 where there is none."""
        column_N = np.zeros(len(self.snapshot))
        for row, value in zip(self.snapshot.rows_of(list(values)), values.values(), strict=True):
            if row is not None:
                column_N[row] = value
        return column_N


def entries_after(
    run_path: Path,
    round_number: int | None = None,
    family: str | None = None,
    *,
    order: str = "age",
    limit: int | None = None,
) -> list[ShownEntry]:
    """Entries of the bank after a round (the newest published one by default).

    Raises BadInput for a round without a bank and for a family the run does not have, RecordDamaged.
    """  # fmt: skip
    bank = BankAfter(RunDirectory.open(run_path), round_number)
    return bank.entries(bank.sorted(bank.rows(family), order)[:limit])


def banked_rounds(run: RunDirectory, recipe: Recipe) -> list[int]:
    """Rounds whose bank is published, in order."""
    found = []
    for number in run.rounds():
        place = publishing_stage(recipe, run.method, number)
        if place is not None and place[0] == number and run.is_complete(*place):
            found.append(number)
    return found


def banked_round(run: RunDirectory, recipe: Recipe, round_number: int | None) -> int:
    """The round if its bank is published, the newest such one for None. Raises BadInput."""
    if not recipe.has_bank:
        raise BadInput(
            f"recipe {recipe.name} of {run.path} keeps no bank", expected=f"a recipe with the stage `{PUBLISHES}`"
        )
    rounds = banked_rounds(run, recipe)
    if not rounds:
        raise BadInput(
            f"{run.path} has no bank yet",
            expected="a committed `initialize` or `consolidate` stage",
            next_step=f"`crl status {quoted(run.path)}` says what is missing",
        )
    if round_number is None:
        return rounds[-1]
    if round_number not in rounds:
        raise BadInput(
            f"round {round_number} of {run.path} has no bank",
            expected=f"a round from {rounds[0]} to {rounds[-1]}",
            next_step=f"`crl bank show {quoted(run.path)}` shows the newest one",
        )
    return round_number


@dataclass(frozen=True, slots=True)
class Hit:
    """One entry found."""

    score: float
    """Cosine of text and entry; of a word search, the share of the words' weight that the entry holds."""
    entry: ShownEntry


def search(bank: BankAfter, text: str, embedder: Embedder, *, family: str | None = None, most: int = 10) -> list[Hit]:
    """The nearest entries by cosine, the nearest first; ties keep the oldest first. Raises BadInput, RecordDamaged."""
    _require_text(text)
    rows = bank.rows(family)
    if not len(rows):
        return []
    best, cosines = nearest(bank.embeddings(rows), embedder.embed_queries([text])[0], most)
    return [Hit(*pair) for pair in zip(cosines, bank.entries(rows[best]), strict=True)]


def nearest(vectors_ND: NDArray[np.float32], query_D: NDArray[np.float32], most: int) -> tuple[list[int], list[float]]:
    """The rows of the vectors with the largest cosines to a query, the nearest first, ties in order of rows; and these
    cosines: in float64, so that one does not depend on how many rows the product was made over."""
    best = _best(vectors_ND @ query_D, most)
    query = query_D.astype(np.float64)
    return best, [float(vectors_ND[row].astype(np.float64) @ query) for row in best]


def search_words(bank: BankAfter, text: str, *, family: str | None = None, most: int = 10) -> list[Hit]:
    """Entries that hold words of the text, whole and in either case; rare words weigh more. No model is needed."""
    _require_text(text)
    words = sorted({word.lower() for word in _WORD.findall(text)})
    if not words:
        raise BadInput(f"{text!r} holds no word", expected="letters or digits", next_step="search without --lexical")
    rows = bank.rows(family)
    if not len(rows):
        return []
    texts = pa.array(bank.texts(rows), pa.string())
    weight_N, total = np.zeros(len(rows)), 0.0
    for word in words:
        # RE2's own word boundary knows ASCII letters only.
        pattern = rf"(^|[^\pL\pN_]){re.escape(word)}($|[^\pL\pN_])"
        holds_N = pc.match_substring_regex(texts, pattern, ignore_case=True).to_numpy(zero_copy_only=False)
        weight = math.log1p(len(rows) / max(1, int(holds_N.sum())))
        weight_N += weight * holds_N
        total += weight
    best = [row for row in _best(weight_N, most) if weight_N[row] > 0]
    found = bank.entries(rows[best]) if best else []
    return [Hit(float(weight_N[row] / total), entry) for row, entry in zip(best, found, strict=True)]


def _best(score_N: NDArray[np.floating[Any]], most: int) -> list[int]:
    """Rows of the highest scores, the highest first, ties in order of rows."""
    found: list[int] = np.argsort(-score_N, kind="stable")[:most].tolist()
    return found


def _require_text(text: str) -> None:
    if not text.strip():
        raise BadInput("there is nothing to search for", expected="a text, such as a game's goal")


@dataclass(frozen=True, slots=True)
class EntryUse:
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
    helpful: Sequence[EntryUse]
    """Those whose interval is above 0, the surest first: by its lower end."""
    harmful: Sequence[EntryUse]
    """Those whose interval is below 0, likewise by its upper end."""
    most_used: Sequence[EntryUse]
    """Those with the most uses, whatever their outcome."""
    open: int
    """Used entries whose interval holds 0: nothing is known of them yet."""


def usefulness(run: RunDirectory) -> Usefulness | None:
    """The usefulness of the newest bank that has scores; None where no experience has been used.

    Raises RecordDamaged.
    """
    newest = next((number for number in reversed(run.rounds()) if run.is_complete(number, _STAGE)), None)
    scores = [] if newest is None else rows_of(EntryScore, run.read(newest, _STAGE, EntryScore))
    if newest is None or not scores:
        return None
    recipe = recipe_in(run)
    return entry_uses(recorded_bank(run, recipe, newest), scores, partial(load_texts, run.path))


def entry_uses(
    bank: Snapshot, scores: Sequence[EntryScore], texts_of: Callable[[pa.Table], Mapping[str, str]]
) -> Usefulness:
    """Usefulness of a bank's entries from their scores. `texts_of` gives texts of rows by content digest.

    Raises what `texts_of` does.
    """
    held = bank.digests_of([score.entry_id for score in scores])
    own = {score.entry_id: score for score, digest in zip(scores, held, strict=True) if score.content_digest == digest}
    rows = rows_with(bank.table, "entry_id", own)
    names = rows["entry_id"].to_pylist()
    # Outcomes are +1 or −1, so their mean and number tell how many were won.
    rates = {name: Rate(round(own[name].uses * (1 + own[name].mean_outcome) / 2), own[name].uses) for name in names}
    bounds = {name: wilson(rate.successes, rate.episodes) for name, rate in rates.items()}
    # A share of one half is a mean outcome of 0.
    helpful = sorted((name for name in names if bounds[name][0] > 0.5), key=lambda name: (-bounds[name][0], name))
    harmful = sorted((name for name in names if bounds[name][1] < 0.5), key=lambda name: (bounds[name][1], name))
    most_used = sorted(names, key=lambda name: (-rates[name].episodes, name))
    listed = rows_with(rows, "entry_id", [*helpful[:LISTED], *harmful[:LISTED], *most_used[:LISTED]])
    texts = texts_of(listed)
    columns = (listed[name].to_pylist() for name in ("entry_id", "family", "content_digest"))
    uses = {
        name: EntryUse(name, family, texts[digest], own[name].last_used_round, rates[name])
        for name, family, digest in zip(*columns, strict=True)
    }
    return Usefulness(
        round=bank.round,
        entries=len(bank),
        used=len(names),
        gone=len(scores) - len(names),
        charts=_usefulness_charts(rates.values(), len(bank) - len(names)),
        helpful=[uses[name] for name in helpful[:LISTED]],
        harmful=[uses[name] for name in harmful[:LISTED]],
        most_used=[uses[name] for name in most_used[:LISTED]],
        open=len(names) - len(helpful) - len(harmful),
    )


def _usefulness_charts(rates: Iterable[Rate], unused: int) -> list[Chart]:
    """Entries by the share of their episodes won, and by how often they were used."""
    heights = [[0.0] * len(_USES) for _ in _OUTCOMES]
    for rate in rates:
        won = rate.successes / rate.episodes
        outcome = 0 if won == 0 else 1 if won < _HALF[0] else 2 if won <= _HALF[1] else 3 if won < 1 else 4
        heights[outcome][max(place for place, (least, _) in enumerate(_USES) if rate.episodes >= least)] += 1
    kinds = [(f"used {name}×" if place == 0 else name, _RAMP + place) for place, (_, name) in enumerate(_USES)]
    by_outcome = [Bar(place, heights[place], name) for place, name in enumerate(_OUTCOMES)]
    used = [(name, sum(row[place] for row in heights)) for place, (_, name) in enumerate(_USES)]
    counts = [("none", float(unused)), *used]
    by_uses = [Bar(place, [count], name) for place, (name, count) in enumerate(counts)]
    title = "entries by how often they were used"
    return [
        bar_chart("entries by the share of their episodes won", kinds, by_outcome, axis="won", named=True),
        bar_chart(title, [("entries", 2)], by_uses, axis="episodes guided", named=True),
    ]
