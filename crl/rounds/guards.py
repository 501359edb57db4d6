"""Whether a run goes on: what `runtime.stop_at` and `method.on_collapse` say of the record of its complete rounds.

Whether a round may begin is a function of the rounds before it (where rounds overlap, of those up to two before, which
have all ended by then): a killed and resumed run decides the same. A round that has begun is finished.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from crl.config import Runtime
from crl.errors import RecordDamaged
from crl.paths import quoted
from crl.records import Metric, rows_of
from crl.rounds.alarms import COLLAPSED
from crl.rounds.evaluate import best_of, held_out_success, recorded_evaluations
from crl.rounds.fall_back import FALL_BACK, HEALTH
from crl.run.directory import RunDirectory
from crl.run.manifest import Manifest

_TOKENS, _OF_EPISODES = "_tokens_sampled", "episode_tokens_sampled"
"""Metrics of what each role wrote; the latter repeats some of it."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Why no further round begins."""

    round: int
    """The last round that has begun."""
    known: int
    """The last round that it speaks of, which is the one before where rounds overlap."""
    setting: str
    reason: str
    next_step: str

    @property
    def in_words(self) -> str:
        """All of it but what to do."""
        known = f"after round {self.known} " if self.known < self.round else ""
        return f"stopped after round {self.round}: {known}{self.reason} ({self.setting})"


class Guards:
    """What the complete rounds of a run say. A round is read once."""

    def __init__(self, run: RunDirectory, runtime: Runtime) -> None:
        self._run, self._runtime = run, runtime
        self._success: dict[int, float | RecordDamaged | None] = {}
        self._tokens: dict[int, int] = {}
        self._seconds: dict[int, float] = {}

    def rounds_kept(self) -> set[int]:
        """The best evaluated round, and those of which nobody can tell how good they are."""
        success = self._success_up_to(None)
        damaged = {number for number, value in success.items() if isinstance(value, RecordDamaged)}
        known = {number: value for number, value in success.items() if not isinstance(value, RecordDamaged)}
        # Where it falls back, what the newest rounds have decided may not be carried out yet.
        looked_back = range(3 if self._run.method.on_collapse == "fall_back" else 1)
        newest = max(known, default=0)
        best = (best_of({each: known[each] for each in known if each <= newest - back}) for back in looked_back)
        return damaged | {number for number in best if number is not None}

    def stop_before(self, number: int) -> Stop | None:
        """Why a round may not begin; None: it may."""
        begun = number - 1
        last = begun - self._run.method.overlap
        if last < 0:
            return None
        said = next(chain(self._collapsed(last), self._reached(last)), None)
        return None if said is None else Stop(begun, last, *said)

    def _collapsed(self, last: int) -> Iterator[tuple[str, str, str]]:
        """What stops the run, by setting: why, and what to do."""
        if self._run.method.on_collapse == "go_on" or not self._run.is_complete(last, HEALTH):
            return
        rows = {row.name: row for row in rows_of(Metric, self._run.read(last, HEALTH, Metric))}
        falls_back = self._run.method.on_collapse == "fall_back" and FALL_BACK in rows  # not one that a fork inherited
        if COLLAPSED in rows and rows[COLLAPSED].value > 0 and not falls_back:
            which = best_of(self._known_up_to(last)) or 0
            fork = f"crl fork {quoted(self._run.path)} --round {which} --name NAME --set KEY=VALUE"
            then = f"go on from its best round with other settings: {fork}"
            yield ("method.on_collapse", rows[COLLAPSED].alarm or "this run has collapsed", then)

    def _reached(self, last: int) -> Iterator[tuple[str, str, str]]:
        asked, where = self._runtime.stop_at, "runtime.stop_at"
        if asked is None:
            return
        go_on = f"to go on, raise it or leave it out: --set {where}=null with `crl train`"
        if asked.success is not None:
            known = self._known_up_to(last)
            newest = max(known, default=None)
            if newest is not None and known[newest] >= asked.success:
                told = f"held-out success of round {newest} is {known[newest]:.3f}, asked for {asked.success:g}"
                yield f"{where}.success", told, go_on
        if asked.tokens is not None and (tokens := sum(map(self._tokens_of, range(last + 1)))) >= asked.tokens:
            told = f"{tokens:,} tokens were generated in training, asked for {asked.tokens:,}"
            yield f"{where}.tokens", told, go_on
        if asked.hours is not None:
            hours = sum(map(self._seconds_of, range(last + 1))) / 3600
            if hours >= asked.hours:
                told = f"its stages took {hours:.3g} hours, asked for {asked.hours:g}"
                yield f"{where}.hours", told, go_on

    def _known_up_to(self, last: int) -> dict[int, float]:
        """Held-out success of the rounds that have any, and can be read."""
        return {number: value for number, value in self._success_up_to(last).items() if isinstance(value, float)}

    def _success_up_to(self, last: int | None) -> dict[int, float | RecordDamaged | None]:
        """Held-out success of the rounds that were evaluated."""
        new = [each for each in self._run.rounds() if each not in self._success]
        for number, rows in recorded_evaluations(self._run, new).items():
            if isinstance(rows, RecordDamaged):
                self._success[number] = rows
            else:
                self._success[number] = held_out_success(self._run.method, rows)
        return {number: value for number, value in self._success.items() if last is None or number <= last}

    def _tokens_of(self, number: int) -> int:
        """Tokens that its models wrote in a round, those of the evaluation left out."""
        if number not in self._tokens:
            found = 0.0
            if self._run.is_complete(number, HEALTH):
                for row in self._run.read(number, HEALTH, Metric).select(["name", "value"]).to_pylist():
                    if row["name"].endswith(_TOKENS) and row["name"] != _OF_EPISODES:
                        found += row["value"]
            self._tokens[number] = int(found)
        return self._tokens[number]

    def _seconds_of(self, number: int) -> float:
        """Seconds that the stages of a round took, by their manifests."""
        if number not in self._seconds:
            stages = self._run.complete_stages(number)
            manifests: list[Manifest] = [self._run.manifest(number, stage) for stage in stages]
            self._seconds[number] = sum(each.seconds for each in manifests)
        return self._seconds[number]
