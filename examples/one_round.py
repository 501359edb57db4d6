"""One round of Complementary RL on one page; the numbers of equations are the paper's.

    python examples/one_round.py --rounds 8

A shrine opens when the right two of three things are offered in the right order: its hidden rule. Two models of two
layers play there and write about it, on a CPU, in a minute. Every computation of the method is the function that the
pipeline calls; what makes it a pipeline (files, digests, resuming, shards) is left out, and so are the merge of the
bank, repeated texts in the buffer, outputs whose prompt was too long, and the metrics of health. Such small models
learn the rule from reward, and hardly from what they read: whether the bank helps is the subject of
research/study.md. The round is `CoEvolution.round`, some sixty lines; the rest is what it acts on.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crl.bank.changes import applied, change_rows
from crl.bank.consolidate import Rules, consolidate
from crl.bank.retrieve import BankRetriever
from crl.bank.segments import new_segments, with_files
from crl.bank.snapshot import Snapshot
from crl.config import Method, RoleConfig
from crl.config.load import load_experiment
from crl.credit.buffer import Earned, Output, fill_buffer
from crl.credit.samples import cispo_samples, grpo_samples, select_batches
from crl.credit.uses import credits_of, earned_when_written, entry_scores, free_means
from crl.envs import make_environment
from crl.extractor.distill import distill_wave, items_of
from crl.extractor.formats import ParsedOperation, write_operations
from crl.extractor.outputs import Distilled
from crl.extractor.prompts import distill_messages
from crl.learn.terms import Objective, objectives
from crl.learn.trainer import Trainer
from crl.policies import load_policy, resolve_model
from crl.policies.embedders import load_embedder
from crl.recipes.complementary.config import config_of
from crl.records import (
    FREE,
    GUIDED,
    BufferItem,
    EntryScore,
    Episode,
    Generation,
    Retrieval,
    RetrievalCount,
    Sample,
    Task,
)
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.run.seeds import seed_for

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "method.families.0.environment": "{kind: shrines, world: 1, steps: 2, choices: 3, things: 8, max_turns: 2}",
    "method.families.0.groups": 8,
    "method.recipe.warm_start": None,  # the extractor has one of its own here: see `teach_form`
    "method.families.0.evaluation_seeds.count": 48,
    # Untrained, the actor offers any of the things: it samples among legal actions, and what it sampled is trained.
    "method.roles.actor.sampling": {"constrain": "actions", "max_new_tokens": 8},
    "method.roles.extractor.sampling.max_new_tokens": 64,
    "method.roles.extractor.optimizer.learning_rate": 2.0e-4,
}


class Learner:
    """A role: the model that samples, and the trainer whose updates it follows."""

    def __init__(self, method: Method, role: str, scratch: Path) -> None:
        self.config, self.seed, self.checkpoint = method.role(role), method.seed, scratch / role
        self.path = resolve_model(self.config.model).path
        self.policy = load_policy(self.config, self.path, None, threads=1)
        self.trainer = self._trainer(self.config, None)

    def update(
        self, batches: Sequence[Sequence[Sample]], objectives: Mapping[str, Objective]
    ) -> list[dict[str, float]]:
        """One optimizer step per batch; the sampling model then takes the new weights."""
        steps = [self.trainer.update(batch, objectives) for batch in batches]
        self.trainer.save(self.checkpoint)
        if not self.policy.take_weights(self.checkpoint):
            raise RuntimeError(f"the sampling model does not fit the weights in {self.checkpoint}")
        return steps

    def imitate(self, batches: Sequence[Sequence[Sample]]) -> list[dict[str, float]]:
        """A supervised start, at a rate of its own."""
        faster = self.config.optimizer.model_copy(update={"learning_rate": 3.0e-3})
        self.trainer = self._trainer(self.config.model_copy(update={"optimizer": faster}), None)
        steps = self.update(batches, objectives())
        self.trainer = self._trainer(self.config, self.checkpoint)
        return steps

    def _trainer(self, config: RoleConfig, checkpoint: Path | None) -> Trainer:
        return Trainer(config, model_path=self.path, checkpoint=checkpoint, threads=1, seed=self.seed)


class CoEvolution:
    """What lasts from round to round: two learners, the bank, and the counters behind eq. 6 and eq. 7."""

    def __init__(self, method: Method, scratch: Path) -> None:
        self.method, self.recipe, (self.family,) = method, config_of(method), method.families
        self.objectives = objectives(self.recipe.actor_objective, self.recipe.extractor_objective)
        self.seed = partial(seed_for, method.seed)  # of every random stream, by name
        self.environment = make_environment(self.family)
        self.embedder = load_embedder(self.recipe.retrieval.embedder)
        self.actor, self.extractor = (Learner(method, role, scratch) for role in ("actor", "extractor"))
        self.bank, self.texts = Snapshot.of(0, []), dict[str, str]()
        self.counts: list[RetrievalCount] = []
        self.scores: list[EntryScore] = []
        self.buffer: list[BufferItem] = []
        self.written: dict[str, Generation] = {}

    # -- the round -------------------------------------------------------------------------------------------------

    def round(self, number: int) -> dict[str, float]:
        """Plan, collect, distill, consolidate, credit, update both, evaluate; returns metrics."""
        recipe, objective = self.recipe, self.recipe.extractor_objective

        # Plan: K rollouts of each task, half guided, half free, retrieval by eq. 6.
        tasks = self.tasks(number)
        retriever = self.retriever(number, diversify=True)
        retrievals = self.retrieve(retriever, [task for task in tasks if task.stream == GUIDED], advance=True)
        self.counts = retriever.counts()

        # Collect: guided and free episodes of a group start from the same state; token ids are kept as sampled.
        played = self.play(tasks, retrievals, "collect")
        episodes = [each.episode for each in played]

        # Distill: one output of the extractor per episode, which adds, updates or returns an experience.
        items = items_of(episodes, [turn for each in played for turn in each.turns], recipe.distill)
        distilled = distill_wave(
            self.extractor.policy, items, role=self.extractor.config, prompt=self.method.prompts["distill"],
            config=recipe.distill, seed_of=self.seed, weights_digest="", round=number,
        )  # fmt: skip
        self.written |= {each.generation.generation_id: each.generation for each in distilled}

        # Consolidate: the operations become the bank of the next round, by pure rules.
        self.consolidate(number, distilled)

        # Credit of the round's uses: +1 or -1 for the output that wrote the text.
        credits = credits_of(episodes, retrievals)
        earned = [Earned(each.generation_id, each.outcome) for each in credits]
        self.scores = entry_scores(self.scores, credits)

        # The actor's samples: advantages inside the guided and inside the free members of a group (eq. 5).
        generations = {record.generation_id: record for each in played for record in each.generations}
        actor_samples = grpo_samples(episodes, generations, recipe.actor_objective, round=number)

        # The extractor's samples: outputs wait in a buffer until they are scored, the oldest first; the advantage is an
        # output's mean score less the mean of those of the batch that are not malformed (eq. 3), times eq. 7's weight.
        earned += earned_when_written([each.distillation for each in distilled], free_means(episodes), objective)
        outputs = [Output(name, (generation.round, "distill")) for name, generation in self.written.items()]
        self.buffer = fill_buffer(self.buffer, outputs, earned, None, round=number)
        batches, self.buffer = select_batches(self.buffer, objective, round=number)
        extractor_samples = cispo_samples(batches, self.written, objective, round=number)

        # Update both: the clipped objective of eq. 5 on the actor, CISPO (eq. 3) on the extractor, a step per batch.
        actor_steps = self.actor.update([actor_samples], self.objectives)
        steps = [[sample for sample in extractor_samples if sample.step == step] for step in range(len(batches))]
        extractor_steps = self.extractor.update(steps, self.objectives)

        return {
            "free": success(each for each in episodes if not each.guided),
            "guided": success(each for each in episodes if each.guided),
            "bank": len(self.bank),
            "malformed": float(np.mean([each.distillation.verdict == "malformed" for each in distilled])),
            "actor moved": sum(step.get("update_norm", 0.0) for step in actor_steps),
            "extractor moved": sum(step.get("update_norm", 0.0) for step in extractor_steps),
            **self.evaluate(number),
        }

    # -- its parts -------------------------------------------------------------------------------------------------

    def tasks(self, number: int, *, held_out: bool = False) -> list[Task]:
        """The planned episodes of a round, or one per held-out seed. The query of eq. 6 is goal and observation."""
        seeds = self.family.evaluation_seeds if held_out else self.family.train_seeds
        drawn = np.arange(seeds.count)
        if not held_out:
            drawn = np.random.default_rng(self.seed(f"tasks-{number}")).choice(drawn, self.family.groups, replace=False)
        starts = self.environment.reset_many([seeds.start + int(seed) for seed in drawn])
        size = 1 if held_out else self.method.rollout.group_size
        guided = 1 if held_out else self.recipe.guided_members(size, number)
        return [
            Task(
                episode_id=f"{'held-out' if held_out else f'r{number}'}-g{group:04d}-m{member}", round=number,
                family=self.family.name, group=group, member=member, environment_seed=seeds.start + int(seed),
                stream=GUIDED if member < guided else FREE, goal=start.goal, first_observation=start.observation,
                query=f"{start.goal}\n{start.observation}",
            )
            for group, (seed, start) in enumerate(zip(drawn, starts, strict=True))
            for member in range(size)
        ]  # fmt: skip

    def retriever(self, number: int, *, diversify: bool) -> BankRetriever:
        """Searches the bank as it is: in planning that of the round before. Only training explores (eq. 6)."""
        texts = [self.texts[digest] for digest in self.bank.table["content_digest"].to_pylist()]
        config = self.recipe.retrieval.model_copy(update={"diversify": diversify})
        vectors_ND = self.embedder.embed(texts)
        return BankRetriever(self.bank, vectors_ND, self.counts, config, round=number, bank_round=self.bank.round)

    def retrieve(self, retriever: BankRetriever, tasks: Sequence[Task], *, advance: bool) -> list[Retrieval]:
        """Every candidate of each task, with every term of eq. 6; the chosen one guides the episode."""
        if not len(self.bank):
            return []
        vectors_QD = self.embedder.embed_queries([task.query for task in tasks])
        asked = [(task.episode_id, task.family) for task in tasks]
        return [row for rows in retriever.retrieve_many(asked, vectors_QD, advance=advance) for row in rows]

    def play(self, tasks: Sequence[Task], retrievals: Sequence[Retrieval], stage: str) -> list[PlayedEpisode]:
        """Play tasks, each with its chosen experience in the prompt if it has one."""
        chosen = {row.episode_id: row for row in retrievals if row.chosen}
        slots = [
            EpisodeSlot(task, (Guide(row.entry_id, row.content_digest, self.texts[row.content_digest]),))
            if (row := chosen.get(task.episode_id)) is not None
            else EpisodeSlot(task)
            for task in tasks
        ]
        return play_wave(
            self.actor.policy, self.environment, slots, method=self.method, seed_of=self.seed,
            sampling=self.actor.config.sampling, weights_digest="", stage=stage,
        )  # fmt: skip

    def consolidate(self, number: int, distilled: Sequence[Distilled]) -> None:
        """Apply what the extractor asked for."""
        asked = [operation for each in distilled for operation in each.operations]
        operations = [dataclasses.replace(operation, embedder_cut=False) for operation in asked]
        rules = Rules(self.recipe.bank, self.recipe.distill.max_characters)
        result = consolidate(self.bank, operations, self.scores, rules, round=number)
        # A bank names the files of its texts; here they are made and not written.
        changes = with_files(result.changes, new_segments(result.new_texts.values(), self.embedder), {})
        self.bank = Snapshot(number, applied(self.bank.table, [change_rows(changes)]))
        self.texts |= result.new_texts

    def evaluate(self, number: int) -> dict[str, float]:
        """Success on held-out seeds, with the nearest experience of the bank and without."""
        tasks = self.tasks(number, held_out=True)
        found = self.retrieve(self.retriever(number, diversify=False), tasks, advance=False)
        arms = {"held out, with bank": found, "held out, without": []}
        return {arm: success(each.episode for each in self.play(tasks, rows, arm)) for arm, rows in arms.items()}

    def teach_form(self, episodes: int, passes: int) -> None:
        """A supervised start of the extractor: what to write about a game. An experience of a won one names the
        rule."""
        tasks = (self.tasks(0) * episodes)[:episodes]
        renamed = [dataclasses.replace(task, episode_id=f"practice-{index}") for index, task in enumerate(tasks)]
        chat, samples = self.extractor.policy.chat, []
        for each in self.play(renamed, [], "practice"):
            moves = ", ".join(turn.action for turn in each.turns if turn.action)
            experience = ParsedOperation(
                "add", f"One game was {'won by' if each.episode.success else 'lost after'} {moves}."
            )
            prompt = distill_messages(self.method.prompts["distill"], each.episode, each.turns, self.recipe.distill)
            read, said = chat.opening(prompt), chat.answer(write_operations([experience], self.recipe.distill.format))
            samples.append(
                Sample(
                    sample_id=each.episode.episode_id, round=0, role="extractor", objective="nll", source="practice",
                    generation_id="", reward=0.0, advantage=1.0, weight=1.0, temperature=1.0,
                    token_ids=[*read, *said], loss_mask=[0] * len(read) + [1] * len(said),
                    logprobs=[0.0] * (len(read) + len(said)),
                )
            )  # fmt: skip
        batches = [samples[first : first + 8] for first in range(0, len(samples), 8)] * passes
        losses = [step["loss"] for step in self.extractor.imitate(batches)]
        print(f"supervised start of the extractor: loss {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps")


def success(episodes: Iterable[Episode]) -> float:
    """Share of episodes won; nan without any."""
    won = [episode.success for episode in episodes]
    return float(np.mean(won)) if won else float("nan")


def main(rounds: int = 8, practice: int = 64, passes: int = 6, **settings: Any) -> list[dict[str, float]]:
    """Run rounds and print their metrics, from before the first; returns them."""
    method = load_experiment(ROOT / "conf" / "tiny.yaml", SETTINGS | settings).method
    with tempfile.TemporaryDirectory() as scratch:
        pair = CoEvolution(method, Path(scratch))
        pair.teach_form(practice, passes)
        metrics = []
        for number in range(rounds + 1):
            metrics.append(pair.round(number) if number else pair.evaluate(0))
            told = ", ".join(f"{name} {value:.3g}" for name, value in metrics[-1].items())
            print(f"round {number}: {told}", flush=True)
        return metrics


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=8)
    main(parser.parse_args().rounds)
