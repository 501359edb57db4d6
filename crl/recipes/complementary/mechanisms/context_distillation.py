"""On-policy context distillation (`recipe.context_distillation`): what a free episode wrote is pulled toward what a
teacher, which reads the experience that would have guided it, would have written there.

The plan retrieves for free episodes too, in rows that teach and are shown to nobody; collecting keeps how a teacher
reads such an episode. Stage `teach` gives each token that it sampled the teacher's log-probability, with the weights
that played the round: the actor's own, or those of another role. Credit makes samples of them whose loss is the
divergence of actor and teacher (`learn/objectives.reverse_kl_objective`). Evaluation reads none of this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import compress

from crl.config import ContextDistillationConfig, Method
from crl.credit.samples import record_of, sample_of, trained_of
from crl.credit.uses import as_shown, usable
from crl.errors import BadInput
from crl.protocols import Reading
from crl.recipes.complementary.config import ACTOR, config_of
from crl.recipes.complementary.mechanisms import Adds, Mechanism, MetricsAndAlarms, RowsByType, Sources, TruthShare
from crl.recipes.complementary.plan import texts_of
from crl.records import (
    Episode,
    Generation,
    Metric,
    Retrieval,
    Sample,
    TeacherContext,
    TeacherLogprobs,
)
from crl.rollout.live import Guide
from crl.rollout.play import PlayedEpisode, teacher_contexts
from crl.rounds.alarms import Metrics
from crl.rounds.context import StageContext
from crl.rounds.impossible import answers_are_actions, refused
from crl.rounds.stage import Read, Stage
from crl.rounds.waves import guides_of
from crl.rounds.weights import weights_of

TEACH = "teach"
REVERSE_KL = "reverse_kl"
"""Name of the objective."""
CONTEXT_LIMIT = "context_limit"


class ContextDistillation(Mechanism):
    """`recipe.context_distillation`."""

    key = "recipe.context_distillation"
    after_rollouts = False
    config: ContextDistillationConfig

    @property
    def needs_guided(self) -> bool:
        return False

    @property
    def teacher(self) -> str:
        """The role that teaches."""
        return self.config.teacher or ACTOR

    def problems(self, method: Method) -> Iterator[BadInput]:
        recipe, where = config_of(method), "method.recipe.context_distillation"
        if ACTOR not in recipe.TRAINED:
            yield refused(where, f"recipe {recipe.kind} does not train the actor", "a recipe that trains it")
        if not recipe.has_bank:
            yield refused(where, f"recipe {recipe.kind} keeps no bank to teach from", "a recipe that keeps one")
        elif recipe.always_guided(method):
            yield refused(where, "guided_share leaves no episode free, and free ones are taught", "a smaller share")
        if any(family.environment.runs_programs for family in method.families):
            why = "programs write the prompts of a task family, so nobody can read its episodes with an experience"
            yield refused(where, why, "task families whose prompts are the method's")
        if self.config.top_k is not None and answers_are_actions(method):
            why = "the actor samples among the legal actions alone, so the likeliest ids are others than its own"
            yield refused(f"{where}.top_k", why, "null, or roles.actor.sampling.constrain: none")
        if self.config.teacher is None:
            return
        if method.owner(self.teacher) in method.trained():
            yield refused(f"{where}.teacher", f"the role {self.teacher} is trained", "a frozen role, or null")
        if method.role(self.teacher).engine.REMOTE:
            why = f"the model of {self.teacher} is behind an endpoint, and a teacher reads every token"
            yield refused(f"{where}.teacher", why, "a role whose model is here")

    def stages(self, method: Method, at: Sources) -> Sequence[Stage]:
        return (
            Stage(
                name=TEACH,
                run=self.teach,
                reads=(Read("collect"), at.weights(self.teacher, 1)),
                writes=(TeacherLogprobs, Metric),
                role=self.teacher,
                update=True,
                due=lambda method, number: config_of(method).teaches(number),
            ),
        )

    def adds(self, method: Method, at: Sources) -> Mapping[str, Adds]:
        taught = Adds(reads=(Read(TEACH),))
        makes_samples = "advantages" if method.overlap else "credit"
        return {"collect": Adds(writes=(TeacherContext,)), makes_samples: taught, "health": taught}

    def wave_rows(self, ctx: StageContext, played: Sequence[PlayedEpisode]) -> RowsByType:
        guides = _guides(ctx, {each.episode.episode_id for each in played if usable(each.episode)})
        found = [
            row
            for each in played
            if each.episode.episode_id in guides
            for row in teacher_contexts(each, guides[each.episode.episode_id])
        ]
        return {TeacherContext: found}

    def metrics(self, ctx: StageContext, truth: TruthShare) -> MetricsAndAlarms:
        """What teaching cost, and how far the actor is from its teacher."""
        return {
            name: value for name, value in ctx.metrics(TEACH).items() if name in ("teacher_gap", "teacher_tokens_read")
        }, {}

    def teach(self, ctx: StageContext) -> None:
        """Write what the teacher gives to the sampled tokens of each free episode. It runs on every rank; only rank 0
        writes rows."""
        contexts = ctx.rows(TeacherContext, "collect")
        generations = {row.generation_id: row for row in ctx.rows(Generation, "collect")}
        weights, limit = weights_of(ctx, self.teacher), ctx.method.role(self.teacher).context
        samples = {
            row.generation_id: as_read(row, record_of(generations, row.generation_id), round=ctx.round)
            for row in contexts
        }
        read = [each for each in samples.values() if len(each.token_ids) <= limit]
        found: dict[str, Reading] = {}
        if read:
            trainer = ctx.services.trainer(ctx.method.owner(self.teacher), weights)
            found = trainer.read(read, likeliest=self.config.top_k or 0)
            ctx.services.trained(ctx.method.owner(self.teacher), weights)
        if ctx.services.rank > 0:
            return
        rows = []
        for context in contexts:
            sample = samples[context.generation_id]
            reading = found.get(sample.sample_id, Reading([], [], []))
            reading = with_sampled(reading, list(compress(sample.token_ids, sample.loss_mask)))
            rows.append(
                TeacherLogprobs(
                    episode_id=context.episode_id,
                    generation_id=context.generation_id,
                    role=self.teacher,
                    weights_digest=weights.weights_digest,
                    tokens_read=len(sample.token_ids),
                    teacher_logprobs=reading.logprobs,
                    top_ids=reading.top_ids,
                    top_logprobs=reading.top_logprobs,
                    reason_code=None if sample.sample_id in found else CONTEXT_LIMIT,
                )
            )
        ctx.write(TeacherLogprobs, rows)
        ctx.write_metrics(teacher_metrics(rows, generations))


def _guides(ctx: StageContext, episode_ids: set[str]) -> dict[str, tuple[Guide, ...]]:
    """By free episode, what its teacher is shown."""
    rows = [row for row in ctx.rows(Retrieval, "plan") if row.teaches and row.episode_id in episode_ids]
    texts = texts_of(ctx, ctx.bank(), {row.content_digest for row in rows})
    return {name: guides_of(shown, texts) for name, shown in as_shown(rows).items()}


def as_read(context: TeacherContext, record: Generation, *, round: int) -> Sample:
    """A sequence behind the prompt that its teacher reads, for one pass over it: nothing was sampled there."""
    behind = context.replaced_tokens
    ids = [*context.token_ids, *record.token_ids[behind:]]
    read = replace(
        record,
        token_ids=ids,
        loss_mask=[0] * len(context.token_ids) + list(record.loss_mask[behind:]),
        logprobs=[0.0] * len(ids),
    )
    return sample_of(read, round=round, role=ACTOR, objective="nll", reward=0.0, advantage=1.0, weight=1.0)


def with_sampled(reading: Reading, sampled: Sequence[int]) -> Reading:
    """A reading with each sampled token among the likeliest ids, in place of the last of them where the teacher would
    rather have said others: else what an actor is sure of and its teacher is not would count among the rest."""
    top_ids, top_logprobs = [list(row) for row in reading.top_ids], [list(row) for row in reading.top_logprobs]
    for ids, values, token, value in zip(top_ids, top_logprobs, sampled, reading.logprobs, strict=False):
        if token not in ids:
            ids[-1], values[-1] = token, value
    return Reading(reading.logprobs, top_ids, top_logprobs)


def teacher_metrics(rows: Iterable[TeacherLogprobs], generations: Mapping[str, Generation]) -> Metrics:
    """What teaching cost, what was too long, and the mean over tokens of log-probability as sampled less the teacher's:
    it estimates the divergence of the actor that played from its teacher, in nats per token."""
    listed = list(rows)
    gaps = [
        own - teacher
        for row in listed
        if row.reason_code is None
        for own, teacher in zip(_sampled(generations[row.generation_id]), row.teacher_logprobs, strict=True)
    ]
    metrics = {
        "teacher_sequences": float(len(listed)),
        "teacher_sequences_too_long": float(sum(row.reason_code is not None for row in listed)),
        "teacher_tokens_read": float(sum(row.tokens_read for row in listed if row.reason_code is None)),
    }
    return {**metrics, "teacher_gap": sum(gaps) / len(gaps)} if gaps else metrics


def _sampled(record: Generation) -> list[float]:
    return list(compress(record.logprobs, record.loss_mask))


def taught_samples(
    ctx: StageContext, episodes: Sequence[Episode], generations: Mapping[str, Generation]
) -> list[Sample] | None:
    """Samples of what the round's free episodes were taught; None in rounds that teach nothing."""
    if not config_of(ctx.method).teaches(ctx.round):
        return None
    return reverse_kl_samples(episodes, generations, ctx.rows(TeacherLogprobs, TEACH), round=ctx.round)


def reverse_kl_samples(
    episodes: Iterable[Episode],
    generations: Mapping[str, Generation],
    taught: Iterable[TeacherLogprobs],
    *,
    round: int,
    role: str = ACTOR,
) -> list[Sample]:
    """The samples of episodes that a teacher has read, in their order, one per sequence that trains. `generations` is
    by generation id. Behavior log-probabilities are those of the token record; the loss is the mean over all tokens."""
    given = {row.generation_id: row for row in taught if row.reason_code is None}
    found = []
    for episode in episodes:
        records = [record_of(generations, name) for name in episode.generation_ids if name in given]
        for record in trained_of(records):
            sample = sample_of(
                record, round=round, role=role, objective=REVERSE_KL, reward=episode.reward, advantage=1.0, weight=1.0
            )
            found.append(
                replace(
                    sample,
                    sample_id=f"{sample.sample_id}-taught",
                    teacher_logprobs=given[record.generation_id].teacher_logprobs,
                    top_ids=given[record.generation_id].top_ids,
                    top_logprobs=given[record.generation_id].top_logprobs,
                )
            )
    return found
