"""Stage `trial`: new experiences are played before they are believed (admission by trial).

Each new text of a task family is played on m training layouts of that family in matched pairs: the same layout and the
same sampling stream, with the experience and without it, by the actor that played the round. Experiences of one family
share the episodes without an experience. A proven text that an update would wait beside (`bank.proven`) is played with
them. None of the layouts is one that the round collected on, where there are others: an experience has to help on games
that it was not made from. The text alone is shown, nothing is asked and there is no critique.

What differs decides which operations may change the bank (`trials`); `merge` and `consolidate` go by it. Of several
outputs about one episode (`distill.outputs`) only the best one may change it, and each is paid by how it did among them
(after Learning to Coach, 2609.15851): they share layouts and streams, none of them a task of the round. A merged text
is not tried: its parents were. The stage has parts of whole families, each with so many episodes as a wave, or more
where one family has more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from crl.bank.consolidate import WAITS
from crl.bank.segments import text_digest
from crl.config import Method, TrialConfig
from crl.credit.advantages import standardized
from crl.credit.buffer import SCORED, USED, Earned
from crl.credit.rules import rule_of
from crl.credit.uses import usable
from crl.errors import BadInput
from crl.protocols import Start
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, MetricsAndAlarms, Sources, Text, TruthShare
from crl.records import (
    OUTDONE,
    TRIAL,
    BankEvent,
    Distillation,
    Episode,
    Generation,
    Operation,
    Trial,
    TrialResult,
    Turn,
)
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.alarms import Metrics
from crl.rounds.context import StageContext
from crl.rounds.proposal import Proposal, distilled_proposal
from crl.rounds.stage import BEFORE, SCORES, Read, RowsOf, Stage, when
from crl.rounds.tasks import distinct, task_of
from crl.rounds.waves import play_with_actor, starts_of, together, wave_width, write_played

WRITING = ("add", "update")
"""Kinds of distilled operations that write a text."""
FAILED, UNTRIED = "failed_trial", "untried"


class AdmissionByTrial(Mechanism):
    """`recipe.trial`."""

    key = "recipe.trial"
    after_rollouts = True
    config: TrialConfig

    def problems(self, method: Method) -> Iterator[BadInput]:
        config, objective = self.config, config_of(method).extractor_objective
        if config.screen is not None and config.screen >= config.layouts:
            yield BadInput(
                f"an experience is given up after {config.screen} layouts, and played on {config.layouts}",
                expected="screen below layouts, or none",
                where="method.recipe.trial.screen",
                next_step="lower it, or leave it out",
            )
        if config.screen is not None and config.threshold <= 0:
            yield BadInput(
                f"an experience that is not ahead is given up, and one with a difference of {config.threshold:g} is "
                "admitted",
                expected="a threshold above 0, or no screen",
                where="method.recipe.trial.screen",
                next_step="leave it out, or raise the threshold",
            )
        trains = EXTRACTOR in config_of(method).TRAINED
        if config.reward != "uses" and trains and rule_of(objective.credit).when_written:
            yield BadInput(
                f"an output is to be paid by its trial ({config.reward}) and by credit: {objective.credit}",
                expected=f"trial.reward: uses beside credit: {objective.credit}, or another credit",
                where="method.recipe.trial.reward",
                next_step="change one of the two",
            )
        if config_of(method).distill.outputs > 1:
            yield from self._compared_problems(method)

    def _compared_problems(self, method: Method) -> Iterator[BadInput]:
        """Settings with which outputs about one episode would not be compared by the same games."""
        config, outputs = self.config, config_of(method).distill.outputs
        alike = f"{outputs} outputs about each episode are compared by the same games"
        if config.screen is not None:
            yield BadInput(
                f"{alike}, and some are given up after {config.screen} of them",
                expected="no trial.screen beside distill.outputs above 1",
                where="method.recipe.trial.screen",
                next_step="leave it out",
            )
        if config.reuse_rounds > 0:
            yield BadInput(
                f"{alike}, and results of games of up to {config.reuse_rounds} rounds before are reused",
                expected="trial.reuse_rounds: 0 beside distill.outputs above 1",
                where="method.recipe.trial.reuse_rounds",
                next_step="set it to 0",
            )
        if config.reward != "trial":
            yield BadInput(
                f"{alike}, and paid by uses ({config.reward})",
                expected="trial.reward: trial beside distill.outputs above 1",
                where="method.recipe.trial.reward",
                next_step="leave it out",
            )
        draws = 1 if method.rollout.dynamic_sampling is None else method.rollout.dynamic_sampling.max_draws
        for index, family in enumerate(method.families):
            needed = config.layouts + draws * family.groups
            if len(family.drawn) < needed:
                yield BadInput(
                    f"{alike}, on {config.layouts} layouts that are no task of the round, and family {family.name} has "
                    f"{len(family.drawn)} training tasks",
                    expected=f"at least {needed}: those of a round and {config.layouts} others",
                    where=f"method.families.{index}.{'train_seeds' if family.train_tasks is None else 'train_tasks'}",
                    next_step="add training tasks (train_seeds.count), or lower recipe.trial.layouts",
                )

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        return (
            Stage(
                name=TRIAL,
                parts=self.count_parts,
                run_part=self.play_part,
                reads=(
                    *(Read("collect"), Read("distill"), at.before, at.weights(ACTOR, 1), Read(TRIAL, -1, BEFORE)),
                    *when(config_of(method).bank.proven is not None, Read("plan"), Read("credit", -1, SCORES)),
                ),
                writes=(Trial, TrialResult, Episode, Turn, Generation),
                untrained=True,
                role=ACTOR,
                due=at.changes_bank,
            ),
        )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        return dict.fromkeys(("merge", "approve", "consolidate", "credit", "health"), Adds(reads=(Read(TRIAL),)))

    def refused(self, rows: RowsOf) -> Mapping[str, str]:
        return trial_refusals(rows(Trial, TRIAL))

    def tried(self, rows: RowsOf) -> Mapping[tuple[str, str], tuple[int, int]]:
        """Pairs and wins of the texts that were tried in this round."""
        now = max((row.round for row in rows(Trial, TRIAL)), default=None)
        return {
            (row.family, row.content_digest): (row.pairs, row.wins_with)
            for row in rows(TrialResult, TRIAL)
            if row.round == now
        }

    def earned(self, ctx: StageContext) -> list[Earned]:
        """By the trials of its texts: one use of several, or all that an output earns."""
        if self.config.reward == "uses":
            return []
        kind = SCORED if self.config.reward == "trial" else USED
        rewards = trial_rewards(ctx.rows(Trial, TRIAL))
        found = compared(rewards, ctx.rows(Distillation, "distill"))
        return [Earned(name, reward, kind, *found.get(name, ())) for name, reward in rewards.items()]

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        """What the trials cost and decided, and whether they decided right."""
        trials, episodes = ctx.rows(Trial, TRIAL), ctx.rows(Episode, TRIAL)
        texts = {row.operation_id: row.text or "" for row in ctx.rows(Operation, "distill")}

        def decided(reason: str) -> list[Text]:
            return [(row.family, texts[row.operation_id]) for row in trials if row.reason_code == reason]

        found = compared(trial_rewards(trials), ctx.rows(Distillation, "distill"))
        return {
            **trial_metrics(trials, episodes, round=ctx.round),
            **compared_metrics(found.values()),
            "actor_tokens_read": float(sum(episode.tokens_read for episode in episodes)),
            "actor_tokens_sampled": float(sum(episode.tokens_sampled for episode in episodes)),
            **truth("experiences_true_admitted", decided("ok")),
            **truth("experiences_true_failed", decided(FAILED)),
        }, {}

    def count_parts(self, ctx: StageContext) -> int:
        """Bins of families."""
        return len(_bins(ctx, _Asking(ctx, self.config)))

    def play_part(self, ctx: StageContext, part: int) -> None:
        """Play the new experiences of some families, and say of each of their operations whether it may change the
        bank."""
        asking = _Asking(ctx, self.config)
        families = _bins(ctx, asking)[part]
        played, found = _Bin(ctx, asking, families).play()
        results = {key: row for key, row in asking.known.items() if key.family in families} | found
        asked = [each for each in asking.asked if each.key.family in families]
        ctx.write(Trial, trials_of(asked, results, asking.config, round=ctx.round))
        ctx.write(TrialResult, [results[key] for key in sorted(results)])
        write_played(ctx, played)


class _Asking:
    """What the round's outputs ask for, and what is known of it."""

    def __init__(self, ctx: StageContext, config: TrialConfig) -> None:
        self.config = config
        believed = distilled_proposal(ctx, believed=True)
        events = [event for each in _looked_at(ctx, believed) for event in each.preview().result().events]
        accepted = {event.operation_id for event in events if event.kind != "rejected"}
        self.collected = ctx.rows(Episode, "collect")
        won = {row.episode_id for row in self.collected if row.success}
        self.asked = [
            Asked(
                row,
                TextKey(row.family, text_digest(row.text)),
                row.operation_id in accepted,
                any(episode_id in won for episode_id in row.episode_ids),
            )
            for row in believed.operations
            if row.kind in WRITING and row.text is not None
        ]
        self.known = in_force(ctx.rows(TrialResult, BEFORE), config, round=ctx.round)
        self.tried = to_try(self.asked, self.known.keys(), config)
        for listed in self.tried.values():
            listed += _beside(listed, believed, events)


def _looked_at(ctx: StageContext, believed: Proposal) -> Iterator[Proposal]:
    """What the round asks for; and, as outputs about one episode stand for each other, the first of each alone, the
    second of each, and so on."""
    yield believed
    outputs = config_of(ctx.method).distill.outputs
    if outputs == 1:
        return
    numbers = {row.distillation_id: row.candidate for row in ctx.rows(Distillation, "distill")}
    for number in range(outputs):
        mine = [row for row in believed.operations if numbers[row.distillation_id] == number]
        yield replace(believed, operations=mine)


def _beside(tried: Sequence[Asked], believed: Proposal, events: Iterable[BankEvent]) -> list[Asked]:
    """The proven texts that tried updates would wait beside: they are played on the same layouts, so that the trial
    says which wins more often. They are no operations, and have no row of their own in `trials`."""
    waits = {event.operation_id: event.parents[0] for event in events if event.reason == WAITS}
    updates = [
        each.operation for each in tried if each.operation.kind == "update" and each.operation.operation_id in waits
    ]
    rows = [row for row in believed.previous.rows_of([waits[each.operation_id] for each in updates]) if row is not None]
    texts = believed.rules.texts(believed.previous.table.take(rows)) if rows else {}
    found: dict[TextKey, Asked] = {}
    for operation, entry in zip(updates, believed.previous.taken(rows), strict=True):
        key = TextKey(entry.family, entry.content_digest)
        held = replace(operation, entry_id=entry.entry_id, text=texts[entry.content_digest])
        found.setdefault(key, Asked(held, key, possible=True, won=False))
    known = {each.key for each in tried}
    return [each for key, each in found.items() if key not in known]


def _bins(ctx: StageContext, asking: _Asking) -> list[tuple[str, ...]]:
    """All families in parts: neighbors that may share a wave, until their first episodes fill one."""
    first_of, found, width = together(ctx.method), list[list[str]](), 0
    for family in sorted(ctx.method.families, key=lambda each: list(first_of.values()).index(first_of[each.name])):
        name = family.name
        experiences = len(asking.tried.get(name, ()))
        episodes = (experiences + 1) * (asking.config.screen or asking.config.layouts) if experiences else 0
        same = found and first_of[found[-1][0]] == first_of[name]
        if not same or width + episodes > wave_width(ctx.method):
            found.append([])
            width = 0
        found[-1].append(name)
        width += episodes
    return [tuple(each) for each in found]


class _Bin:
    """Families whose experiences are played together."""

    def __init__(self, ctx: StageContext, asking: _Asking, families: Sequence[str]) -> None:
        self._ctx, self._config, self._collected = ctx, asking.config, asking.collected
        self._experiences = {name: asking.tried[name] for name in families if name in asking.tried}
        self._layouts = {name: self._drawn(name) for name in self._experiences}

    def play(self) -> tuple[list[PlayedEpisode], dict[TextKey, TrialResult]]:
        """Play the layouts of the screen, then the rest for what is ahead: the episodes, and what they say of each
        text."""
        config = self._config
        first = config.screen or config.layouts
        episodes = self._played(list(self._slots(self._experiences, 0, first)))
        results = self._results(episodes)
        hopeful = {
            family: [each for each in listed if ahead(results[each.key])]
            for family, listed in self._experiences.items()
        }
        if first < config.layouts:
            episodes += self._played(list(self._slots(hopeful, first, config.layouts)))
            results = self._results(episodes)
        return episodes, results

    def _drawn(self, family: str) -> list[tuple[int, Start]]:
        """Seeds and starts of the layouts of a family: training tasks, others than those of the round if there are."""
        ctx, config = self._ctx, self._ctx.method.family(family)
        assert config is not None
        seeds, compares = config.drawn, config_of(ctx.method).distill.outputs > 1
        collected = [row for row in self._collected if row.family == family]
        played = {row.environment_seed for row in collected}
        wanted, generator = self._config.layouts, np.random.default_rng(ctx.seed(family))
        if len(seeds) < wanted:
            drawn = [*generator.permutation(len(seeds)), *generator.choice(len(seeds), size=wanted)]
        else:  # as many more as the round played, if there are: so many of what is drawn may be taken
            drawn = [*generator.choice(len(seeds), size=min(wanted + len(played), len(seeds)), replace=False)]
        chosen = sorted((seeds[int(value)] for value in drawn), key=played.__contains__)
        taken = {row.task_digest for row in collected} - {""}
        found = distinct(
            chosen, wanted, lambda those: starts_of(ctx, [(family, seed) for seed in those], played_here=True), taken
        )
        # What is compared is played on no task of the round, and rather on fewer layouts.
        return [(seed, start) for seed, start in found if not (compares and start.task_digest in taken)]

    def _slots(self, experiences: dict[str, list[Asked]], first: int, last: int) -> Iterator[EpisodeSlot]:
        """Of each family with experiences: every layout without an experience, and with each of them."""
        for family, listed in experiences.items():
            places = {each.key: place for place, each in enumerate(self._experiences[family], start=1)}
            for layout in range(first, min(last, len(self._layouts[family]))) if listed else ():
                yield self._slot(family, layout, 0, None)
                for each in listed:
                    yield self._slot(family, layout, places[each.key], each)

    def _slot(self, family: str, layout: int, member: int, experience: Asked | None) -> EpisodeSlot:
        seed, start = self._layouts[family][layout]
        task = task_of(
            self._ctx,
            start,
            episode_id=f"t{self._ctx.round:04d}-{family}-l{layout:04d}-" + (f"n{member:04d}" if experience else "free"),
            family=family,
            group=layout,
            member=member,
            environment_seed=seed,
            stream=TRIAL,
        )
        if experience is None:
            return EpisodeSlot(task)
        guide = Guide(
            experience.operation.entry_id or "", experience.key.content_digest, experience.operation.text or ""
        )
        return EpisodeSlot(task, (guide,))

    def _played(self, slots: list[EpisodeSlot]) -> list[PlayedEpisode]:
        """Play the slots a wave at a time. With the experience and without it an episode has the stream of its
        layout."""
        ctx, width = self._ctx, wave_width(self._ctx.method)
        streams = {slot.task.episode_id: ctx.seed(slot.task.family, slot.task.group) for slot in slots}
        waves = (slots[at : at + width] for at in range(0, len(slots), width))
        return [
            each for wave in waves for each in play_with_actor(ctx, wave, seed_of=streams.__getitem__, groups=False)
        ]

    def _results(self, played: Sequence[PlayedEpisode]) -> dict[TextKey, TrialResult]:
        free = {(each.episode.family, each.episode.group): each.episode for each in played if not each.episode.guided}
        noted: dict[TextKey, list[tuple[Episode, Episode]]] = {
            each.key: [] for listed in self._experiences.values() for each in listed
        }
        for episode in (each.episode for each in played if each.episode.guided):
            pair = (episode, free[episode.family, episode.group])
            noted[TextKey(episode.family, episode.content_digests[0])].append(pair)
        return {key: result_of(key, pairs, round=self._ctx.round) for key, pairs in noted.items()}


Episodes = tuple[str, ...]
"""Ids of the episodes that an output is about."""


class TextKey(NamedTuple):
    """A text in a task family: what is tried once, however many outputs wrote it."""

    family: str
    content_digest: str


@dataclass(frozen=True, slots=True)
class Asked:
    """An operation that writes a text."""

    operation: Operation
    key: TextKey
    possible: bool
    """Whether the bank would take it, if every text of the round were believed."""
    won: bool
    """Whether the episode that it was distilled from was won."""


def in_force(results: Iterable[TrialResult], config: TrialConfig, *, round: int) -> dict[TextKey, TrialResult]:
    """Results of earlier rounds that hold in a round. Where too many pairs broke there is none: it is tried again."""
    return {
        TextKey(row.family, row.content_digest): row
        for row in results
        if row.pairs > 0 and round - config.reuse_rounds <= row.round < round
    }


def to_try(asked: Sequence[Asked], known: Set[TextKey], config: TrialConfig) -> dict[str, list[Asked]]:
    """By family, the first operation of each text that is tried, in the order of trying.

    Tried is what the bank would take and no result in force speaks of: first what won episodes were distilled to most
    often, then what was written most often, then what was written first; at most `config.max_experiences` of a family.
    """
    first: dict[TextKey, Asked] = {}
    written: dict[TextKey, list[bool]] = defaultdict(list)
    for each in asked:
        written[each.key].append(each.won)
        if each.possible and each.key not in known:
            first.setdefault(each.key, each)
    ordered = sorted(first.values(), key=lambda each: (-sum(written[each.key]), -len(written[each.key])))
    found: dict[str, list[Asked]] = defaultdict(list)
    for each in ordered:
        if config.max_experiences is None or len(found[each.key.family]) < config.max_experiences:
            found[each.key.family].append(each)
    return {family: found[family] for family in sorted(found)}


def result_of(key: TextKey, pairs: Iterable[tuple[Episode, Episode]], *, round: int) -> TrialResult:
    """What the pairs (with, without) of a text say. A pair of which an environment broke a half does not count, and
    where less than half of the pairs are left they say nothing: one alone should not let an experience in."""
    played = list(pairs)
    counted = [(noted, free) for noted, free in played if usable(noted) and usable(free)]
    if 2 * len(counted) < len(played):
        counted = []
    return TrialResult(
        family=key.family,
        content_digest=key.content_digest,
        round=round,
        pairs=len(counted),
        wins_with=sum(noted.success for noted, _ in counted),
        wins_without=sum(free.success for _, free in counted),
    )


def difference_of(result: TrialResult) -> float | None:
    """Share won with the experience less share won without it; None without a pair."""
    return (result.wins_with - result.wins_without) / result.pairs if result.pairs else None


def ahead(result: TrialResult) -> bool:
    """Whether an experience is worth the rest of its layouts (`trial.screen`)."""
    return result.wins_with > result.wins_without


def best_of_episodes(asked: Iterable[Asked], results: Mapping[TextKey, TrialResult]) -> set[tuple[Episodes, TextKey]]:
    """The texts of the output about each episode that did best, with the episode: by the mean difference of its tried
    texts, the first of equals."""
    texts: dict[Episodes, dict[str, dict[TextKey, float]]] = defaultdict(lambda: defaultdict(dict))
    for each in asked:
        difference = difference_of(results[each.key]) if each.key in results else None
        if difference is not None:
            operation = each.operation
            texts[tuple(operation.episode_ids)][operation.generation_id][each.key] = difference
    return {
        (episodes, key)
        for episodes, outputs in texts.items()
        for key in max(outputs.values(), key=lambda own: sum(own.values()) / len(own))
    }


def trials_of(
    asked: Iterable[Asked], results: Mapping[TextKey, TrialResult], config: TrialConfig, *, round: int
) -> list[Trial]:
    """One row per operation whose text has a result, or should have one and was not tried; in the order given.

    An operation that the bank rejects anyway has a row where its text was tried for another one: it earns the same, and
    cannot come in where that one may not.
    """
    rows, listed = [], list(asked)
    best = best_of_episodes(listed, results)
    for each in listed:
        result = results.get(each.key)
        if result is None and not each.possible:
            continue
        difference = None if result is None else difference_of(result)
        passed = difference is not None and difference >= config.threshold
        outdone = (tuple(each.operation.episode_ids), each.key) not in best
        reason = UNTRIED if difference is None else FAILED if not passed else OUTDONE if outdone else "ok"
        rows.append(
            Trial(
                operation_id=each.operation.operation_id,
                round=round,
                family=each.key.family,
                entry_id=each.operation.entry_id or "",
                content_digest=each.key.content_digest,
                generation_id=each.operation.generation_id,
                tried_round=None if result is None else result.round,
                pairs=0 if result is None else result.pairs,
                wins_with=0 if result is None else result.wins_with,
                wins_without=0 if result is None else result.wins_without,
                difference=difference,
                admitted=reason == "ok",
                reason_code=reason,
            )
        )
    return rows


def trial_refusals(trials: Iterable[Trial]) -> dict[str, str]:
    """Why operations change nothing, by id, as the bank's events record it."""
    return {row.operation_id: row.reason_code for row in trials if not row.admitted}


def trial_rewards(trials: Iterable[Trial]) -> dict[str, float]:
    """By output, twice the mean difference of its tried texts; an output none of whose texts was tried is left out."""
    found: dict[str, list[float]] = defaultdict(list)
    for row in trials:
        if row.difference is not None:
            found[row.generation_id].append(2 * row.difference)
    return {generation_id: sum(values) / len(values) for generation_id, values in found.items()}


def compared(rewards: Mapping[str, float], outputs: Iterable[Distillation]) -> dict[str, tuple[str, float]]:
    """By output the episode among whose outputs it is compared, and its advantage there: its reward less the mean of
    theirs, divided by their deviation; 0 where all are equal. An output that alone of its episode was tried is left
    out: its batch compares it (eq. 3)."""
    groups: dict[str, list[str]] = defaultdict(list)
    for row in outputs:
        if row.episode_id is not None and row.generation_id in rewards:
            groups[row.episode_id].append(row.generation_id)
    return {
        name: (episode_id, float(advantage))
        for episode_id, names in groups.items()
        if len(names) > 1
        for name, advantage in zip(
            names, standardized(np.array([rewards[name] for name in names]), "group"), strict=True
        )
    }


def compared_metrics(results: Iterable[tuple[str, float]]) -> Metrics:
    """How many outputs were compared with others about their episode, and the share of them that differ; none where no
    output was."""
    advantages = [advantage for _, advantage in results]
    if not advantages:
        return {}
    differ = sum(advantage != 0 for advantage in advantages) / len(advantages)
    return {"outputs_compared": float(len(advantages)), "outputs_compared_differing": differ}


def trial_metrics(trials: Sequence[Trial], episodes: Sequence[Episode], *, round: int) -> Metrics:
    """What the trials of a round cost and decided: texts and their episodes, shares of operations, mean difference."""
    texts = {(row.family, row.content_digest): row for row in trials if row.tried_round == round}
    metrics = {"trial_episodes": float(len(episodes)), "trial_texts": float(len(texts))}
    if trials:
        metrics["trial_admitted"] = sum(row.admitted for row in trials) / len(trials)
        metrics["trial_untried"] = sum(row.tried_round is None for row in trials) / len(trials)
    measured = [row.difference for row in texts.values() if row.difference is not None]
    if measured:
        metrics["trial_difference"] = sum(measured) / len(measured)
    return metrics
