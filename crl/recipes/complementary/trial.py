"""Stage `trial`: new notes are played before they are believed (admission by trial).

Each new text of a task family is played on m training layouts of that family in matched pairs: the same layout and the
same sampling stream, with the note and without it, by the actor that played the round. Notes of one family share the
episodes without a note. None of the layouts is one that the round collected on, where there are others: a note has to
help on games that it was not made from. The text alone is shown, nothing is asked and nobody judges it.

What differs decides which operations may change the bank (`trials`); `merge` and `consolidate` go by it. A merged text
is not tried: its parents were. The stage has parts of whole families, each with so many episodes as a wave, or more
where one family has more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from crl.bank.consolidate import Consolidation
from crl.bank.duplicates import SimilarPairs
from crl.bank.segments import text_digest
from crl.config import Method, TrialConfig
from crl.credit.trials import Asked, TextKey, ahead, in_force, result_of, to_try, trials_of
from crl.protocols import Start
from crl.recipes.complementary.config import config_of
from crl.recipes.complementary.proposal import rules_of
from crl.records import TRIAL, Episode, Generation, Operation, Resemblance, Trial, TrialResult, Turn
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.stage import BEFORE
from crl.rounds.tasks import task_of
from crl.rounds.waves import play, sampling_of, starts_of, together
from crl.rounds.weights import weights_of

WRITING = ("add", "update")
"""Kinds of distilled operations that write a text."""


def count_parts(ctx: StageContext) -> int:
    """Bins of families."""
    return len(_bins(ctx, _Asking(ctx)))


def trial_part(ctx: StageContext, part: int) -> None:
    """Play the new notes of some families, and say of each of their operations whether it may change the bank."""
    asking = _Asking(ctx)
    families = _bins(ctx, asking)[part]
    played = _Bin(ctx, asking, families).play()
    known = {key: row for key, row in asking.known.items() if key.family in families}
    new = {TextKey(row.family, row.content_digest): row for row in played.results}
    results = {**known, **new}
    asked = [each for each in asking.asked if each.key.family in families]
    ctx.write(Trial, trials_of(asked, results, asking.config, round=ctx.round))
    ctx.write(TrialResult, [results[key] for key in sorted(results)])
    ctx.write(Episode, [each.episode for each in played.episodes])
    ctx.write(Turn, [turn for each in played.episodes for turn in each.turns])
    ctx.write(Generation, [each.generation for each in played.episodes])


class _Asking:
    """What the round's outputs ask for, and what is known of it."""

    def __init__(self, ctx: StageContext) -> None:
        config = config_of(ctx.method).trial
        assert config is not None
        self.config: TrialConfig = config
        operations = ctx.rows(Operation, "distill")
        near = config_of(ctx.method).bank.duplicates == "near"
        alike = SimilarPairs(ctx.rows(Resemblance, "distill") if near else ())
        preview = Consolidation(ctx.bank(), rules_of(ctx.method), alike, round=ctx.round)
        preview.apply(operations)
        rejected = preview.rejections()
        self.collected = ctx.rows(Episode, "collect")
        won = {row.episode_id for row in self.collected if row.success}
        self.asked = [
            Asked(
                row,
                TextKey(row.family, text_digest(row.text)),
                row.operation_id not in rejected,
                any(episode_id in won for episode_id in row.episode_ids),
            )
            for row in operations
            if row.kind in WRITING and row.text is not None
        ]
        self.known = in_force(ctx.rows(TrialResult, BEFORE), config, round=ctx.round)
        self.tried = to_try(self.asked, self.known.keys(), config)


def _width(method: Method) -> int:
    """Episodes that are played side by side."""
    return method.rollout.wave_groups * method.rollout.group_size


def _bins(ctx: StageContext, asking: _Asking) -> list[tuple[str, ...]]:
    """All families in parts: neighbors that may share a wave, until their first episodes fill one."""
    first_of, found, width = together(ctx.method), list[list[str]](), 0
    for family in sorted(ctx.method.families, key=lambda each: list(first_of.values()).index(first_of[each.name])):
        name = family.name
        notes = len(asking.tried.get(name, ()))
        episodes = (notes + 1) * (asking.config.screen or asking.config.layouts) if notes else 0
        same = found and first_of[found[-1][0]] == first_of[name]
        if not same or width + episodes > _width(ctx.method):
            found.append([])
            width = 0
        found[-1].append(name)
        width += episodes
    return [tuple(each) for each in found]


@dataclass(frozen=True, slots=True)
class _Tried:
    """The episodes of a part, and what they say of each text."""

    results: list[TrialResult]
    episodes: list[PlayedEpisode]


class _Bin:
    """Families whose notes are played together."""

    def __init__(self, ctx: StageContext, asking: _Asking, families: Sequence[str]) -> None:
        self._ctx, self._config, self._collected = ctx, asking.config, asking.collected
        self._notes = {name: asking.tried[name] for name in families if name in asking.tried}
        self._layouts = {name: self._drawn(name) for name in self._notes}

    def play(self) -> _Tried:
        """Play the layouts of the screen, then the rest for what is ahead."""
        config = self._config
        first = config.screen or config.layouts
        episodes = self._played(list(self._slots(self._notes, 0, first)))
        results = self._results(episodes)
        hopeful = {
            family: [each for each in listed if ahead(results[each.key])] for family, listed in self._notes.items()
        }
        if first < config.layouts:
            episodes += self._played(list(self._slots(hopeful, first, config.layouts)))
            results = self._results(episodes)
        return _Tried(list(results.values()), episodes)

    def _drawn(self, family: str) -> list[tuple[int, Start]]:
        """Seeds and starts of the layouts of a family: training seeds, others than those of the round if there are."""
        ctx, config = self._ctx, self._ctx.method.family(family)
        assert config is not None
        seeds = config.train_seeds
        played = {row.environment_seed for row in self._collected if row.family == family}
        wanted, generator = self._config.layouts, np.random.default_rng(ctx.seed(family))
        if seeds.count >= wanted + len(played):
            # As many more as the round played: so many of what is drawn may be taken.
            drawn = generator.choice(seeds.count, size=wanted + len(played), replace=False)
            chosen = [seeds.start + int(value) for value in drawn if seeds.start + int(value) not in played][:wanted]
        else:
            drawn = generator.choice(seeds.count, size=wanted, replace=wanted > seeds.count)
            chosen = [seeds.start + int(value) for value in drawn]
        return list(zip(chosen, starts_of(ctx, [(family, seed) for seed in chosen], played_here=True), strict=True))

    def _slots(self, notes: dict[str, list[Asked]], first: int, last: int) -> Iterator[EpisodeSlot]:
        """Of each family with notes: every layout without a note, and with each of them."""
        for family, listed in notes.items():
            places = {each.key: place for place, each in enumerate(self._notes[family], start=1)}
            for layout in range(first, last) if listed else ():
                yield self._slot(family, layout, 0, None)
                for each in listed:
                    yield self._slot(family, layout, places[each.key], each)

    def _slot(self, family: str, layout: int, member: int, note: Asked | None) -> EpisodeSlot:
        seed, start = self._layouts[family][layout]
        task = task_of(
            self._ctx,
            start,
            episode_id=f"t{self._ctx.round:04d}-{family}-l{layout:04d}-" + (f"n{member:04d}" if note else "free"),
            family=family,
            group=layout,
            member=member,
            environment_seed=seed,
            stream=TRIAL,
        )
        if note is None:
            return EpisodeSlot(task)
        return EpisodeSlot(task, note.operation.entry_id, note.key.content_digest, note.operation.text)

    def _played(self, slots: list[EpisodeSlot]) -> list[PlayedEpisode]:
        """Play the slots a wave at a time. With the note and without it an episode has the stream of its layout."""
        ctx = self._ctx
        if not slots:
            return []
        weights = weights_of(ctx, "actor")
        policy = ctx.services.policy("actor", weights)
        streams = {slot.task.episode_id: ctx.seed(slot.task.family, slot.task.group) for slot in slots}
        played: list[PlayedEpisode] = []
        width = _width(ctx.method)
        with ctx.timed("play", len(slots)):
            for at in range(0, len(slots), width):
                wave = slots[at : at + width]
                played += play(
                    ctx,
                    policy,
                    wave,
                    sampling=sampling_of(ctx.method, [slot.task.family for slot in wave]),
                    weights_digest=weights.weights_digest,
                    seed_of=streams.__getitem__,
                )
        return played

    def _results(self, played: Sequence[PlayedEpisode]) -> dict[TextKey, TrialResult]:
        free = {(each.episode.family, each.episode.group): each.episode for each in played if not each.episode.guided}
        noted: dict[TextKey, list[tuple[Episode, Episode]]] = {
            each.key: [] for listed in self._notes.values() for each in listed
        }
        for episode in (each.episode for each in played if each.episode.guided):
            pair = (episode, free[episode.family, episode.group])
            noted[TextKey(episode.family, episode.content_digest or "")].append(pair)
        return {key: result_of(key, pairs, round=self._ctx.round) for key, pairs in noted.items()}
