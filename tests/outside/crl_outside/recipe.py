"""A round of `reviewed`: plan, collect, review, credit, update, evaluate. The reviewer may have the actor's weights."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from typing import Annotated as A
from typing import ClassVar

import numpy as np

from crl.config import Method
from crl.credit.advantages import standardized
from crl.credit.samples import grpo_samples
from crl.learn.terms import Objective, objectives
from crl.protocols import Start
from crl.records import Episode, Evaluation, Generation, Metric, Row, Rules, Sample, Task, Turn, Weights
from crl.rollout.play import PlayedEpisode
from crl.rounds.context import StageContext
from crl.rounds.stage import Read, Recipe, Stage
from crl.rounds.tasks import task_of
from crl.rounds.waves import play, slots_of
from crl.rounds.weights import update_name, update_stage, weights_of
from crl.run.seeds import number_of, seed_for
from crl.text.outputs import prepared, room_for_prompt, sample_outputs, token_record

STREAM = "alone"
"""All rollouts of a group are of one stream: nothing guides any of them."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Review(Row):
    """What the reviewer wrote about an episode."""

    table: ClassVar[str] = "reviews"
    episode_id: A[str, "episode"]
    text: A[str, "what it wrote"]
    score: A[float, "1 for nothing, toward 0 the longer it is"]
    generation_id: A[str, "token record"]

    rules: ClassVar[Rules] = Rules(key=("episode_id",), filled=("generation_id",), ranges={"score": (0, 1)})


def build(method: Method) -> Recipe:
    """The stages, the objectives, and the rules of the row type that this recipe brings."""
    config = method.recipe

    def weights(role: str, back: int) -> Read:
        return Read(update_name(method.owner(role)), -back, role)

    evaluates = Stage(name="evaluate", run=evaluate, reads=(weights("actor", 0),), writes=(Evaluation,), role="actor")
    return Recipe(
        name=config.kind,
        preparation=(Stage(name="initialize", run=initialize, writes=(Weights,)), evaluates),
        stages=(
            # Listed as one likes: a stage runs after those of its round that it reads.
            evaluates,
            *(update_stage(owner) for owner in method.trained()),
            Stage(name="plan", run=plan, writes=(Task,)),
            Stage(
                name="collect",
                run=collect,
                reads=(Read("plan"), weights("actor", 1)),
                writes=(Episode, Turn, Generation),
                role="actor",
            ),
            Stage(
                name="review",
                run=review,
                reads=(Read("collect"), weights("reviewer", 1)),
                writes=(Review, Generation),
                role="reviewer",
            ),
            Stage(name="credit", run=credit, reads=(Read("collect"), Read("review")), writes=(Sample, Metric)),
        ),
        initial={update_name(owner): "initialize" for owner in method.owners()},
        trains=frozenset(method.trained()),
        objectives={
            **objectives(config.actor_objective),
            "reinforce": Objective("crl_outside.objective:reinforce", config.review_scale, on_policy=False),
        },
        row_types=(Review,),
    )


def initialize(ctx: StageContext) -> None:
    """The base models as they are, one row per set of weights."""
    rows = []
    for owner in ctx.method.owners():
        digest = ctx.services.model_digest(owner)
        whole = hashlib.sha256(digest.encode()).hexdigest()
        source = ctx.method.role(owner).model
        rows.append(
            Weights(role=owner, round=0, updates=0, source=source, base_digest=digest, checkpoint=None,
                    weights_digest=whole)
        )  # fmt: skip
    ctx.write(Weights, rows)


def plan(ctx: StageContext) -> None:
    """The tasks of the round: the same for every member of a group."""
    tasks: list[Task] = []
    for family in ctx.method.families:
        drawn = np.random.default_rng(ctx.seed(family.name)).integers(family.train_seeds.count, size=family.groups)
        seeds = [family.train_seeds.start + int(seed) for seed in drawn]
        starts = ctx.environment(family.name).reset_many(seeds)
        for group, (seed, start) in enumerate(zip(seeds, starts, strict=True), start=len(tasks)):
            for member in range(ctx.method.rollout.group_size):
                task = _task(ctx, start, f"r{ctx.round}-{family.name}-g{group}-m{member}", family.name, seed)
                tasks.append(dataclasses.replace(task, group=group, member=member))
    ctx.write(Task, tasks)


def collect(ctx: StageContext) -> None:
    """Play them with the actor of the round before."""
    played = _played(ctx, ctx.rows(Task, "plan"))
    ctx.write(Episode, [each.episode for each in played])
    ctx.write(Turn, [turn for each in played for turn in each.turns])
    ctx.write(Generation, [record for each in played for record in each.generations])


def review(ctx: StageContext) -> None:
    """One line per episode, by the reviewer."""
    role, weights = ctx.method.role("reviewer"), weights_of(ctx, "reviewer")
    policy, prompt = ctx.services.policy("reviewer", weights), ctx.method.prompts["review"]
    episodes = ctx.rows(Episode, "collect")
    room, asked = room_for_prompt(policy, role), []
    for episode in episodes:
        messages = [
            {"role": "system", "content": prompt.system},
            {"role": "user", "content": prompt.first.replace("{goal}", episode.goal)},
        ]
        name = f"v-{episode.episode_id}"
        asked.append(prepared(policy, name, messages, room, seed=number_of(ctx.seed(name))))
    outputs = sample_outputs(policy, asked, role.sampling, batch=ctx.method.recipe.review_batch)
    records = [
        token_record(
            output, generation_id=output.prompt.name, round=ctx.round, stage=ctx.stage.name, role="reviewer",
            kind="review", weights_digest=weights.weights_digest, temperature=role.sampling.temperature,
        )
        for output in outputs
    ]  # fmt: skip
    ctx.write(
        Review,
        [
            Review(episode_id=episode.episode_id, text=record.output, score=1 / (1 + len(record.output)),
                   generation_id=record.generation_id)
            for episode, record in zip(episodes, records, strict=True)
        ],
    )  # fmt: skip
    ctx.write(Generation, records)


def credit(ctx: StageContext) -> None:
    """Samples of both roles: GRPO for the actor's episodes, REINFORCE for the reviews."""
    config, episodes = ctx.method.recipe, ctx.rows(Episode, "collect")
    played = {row.generation_id: row for row in ctx.rows(Generation, "collect")}
    samples = grpo_samples(episodes, played, config.actor_objective, round=ctx.round, streams=(STREAM,))
    reviews = ctx.rows(Review, "review")
    written = {row.generation_id: row for row in ctx.rows(Generation, "review")}
    advantages = standardized(np.array([row.score for row in reviews]), "std")
    for row, advantage in zip(reviews, advantages, strict=True):
        record = written[row.generation_id]
        samples.append(
            Sample(
                sample_id=f"r{ctx.round}-reviewer-{row.generation_id}", round=ctx.round, role="reviewer",
                objective="reinforce", source=f"{ctx.round:04d}/review", generation_id=row.generation_id,
                reward=row.score, advantage=float(advantage), weight=1.0, temperature=record.temperature,
                token_ids=record.token_ids, loss_mask=record.loss_mask, logprobs=record.logprobs,
            )
        )  # fmt: skip
    ctx.write(Sample, samples)
    mean = sum(row.score for row in reviews) / len(reviews)
    ctx.write(Metric, [Metric(round=ctx.round, stage=ctx.stage.name, name="review_score", value=mean, alarm=None)])


def evaluate(ctx: StageContext) -> None:
    """Held-out seeds with this round's actor; each has one random stream in every round."""
    rows = []
    for family in ctx.method.families:
        held_out = family.evaluation_seeds
        seeds = range(held_out.start, held_out.start + held_out.count)
        starts = ctx.environment(family.name).reset_many(list(seeds))
        tasks = [
            _task(ctx, start, f"e{ctx.round}-{family.name}-{seed}", family.name, seed)
            for seed, start in zip(seeds, starts, strict=True)
        ]
        rows += [_evaluated(ctx, each) for each in _played(ctx, tasks, held_out=True)]
    ctx.write(Evaluation, rows)


def _played(ctx: StageContext, tasks: Sequence[Task], *, held_out: bool = False) -> list[PlayedEpisode]:
    weights = weights_of(ctx, "actor")
    return play(
        ctx,
        ctx.services.policy("actor", weights),
        slots_of(tasks, {}, {}),
        sampling=ctx.method.role("actor").sampling,
        weights_digest=weights.weights_digest,
        seed_of=(lambda name: seed_for(ctx.method.seed, "held out", name.split("-", 1)[1])) if held_out else None,
    )


def _task(ctx: StageContext, start: Start, episode_id: str, family: str, seed: int) -> Task:
    task = task_of(ctx, start, episode_id=episode_id, family=family, group=0, environment_seed=seed)
    return dataclasses.replace(task, stream=STREAM)


def _evaluated(ctx: StageContext, played: PlayedEpisode) -> Evaluation:
    episode = played.episode
    same = ("family", "environment_seed", "guided", "entry_ids", "success", "reward", "turns", "invalid_actions",
            "tokens_read", "tokens_sampled", "stop_reason")  # fmt: skip
    return Evaluation(
        evaluation_id=episode.episode_id,
        round=ctx.round,
        condition="without_bank",
        actions=[turn.action or "" for turn in played.turns],
        **{name: getattr(episode, name) for name in same},
    )
