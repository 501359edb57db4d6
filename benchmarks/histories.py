"""An update of episodes whose histories are cut, against one of appended episodes with as many distinct tokens.

    python benchmarks/histories.py [--pairs 7] [--model smollm2-135m-instruct] [--games 2] [--micro-batch 4]

A script plays games of 60 turns in a context of 2,048 tokens, once for each history. Their sequences are the samples of
an update; its tokens, of what sequences share once, are the distinct ones. The other update has appended episodes with
as many tokens in all, each as long as the context, and as many trained ones. Both are made in turn by one trainer,
after one of each that is not counted; a ratio is that of neighbors, in seconds of CPU where there is no GPU: other load
hits both alike.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from update import machine, spread

from crl.config import (
    ActorObjective,
    DeepSpeedConfig,
    FamilyConfig,
    Method,
    OptimizerConfig,
    PromptConfig,
    RoleConfig,
    RolloutConfig,
    SamplingConfig,
)
from crl.config.roles import HistoryConfig, SummaryAt, SummaryHistory, WindowHistory
from crl.credit.samples import grpo_sample, weighed
from crl.envs.frozenlake import FrozenLakeConfig
from crl.envs.game import Game, Move
from crl.learn.batches import cut, tree_of
from crl.learn.terms import objectives
from crl.learn.trainer import Trainer
from crl.policies import load_chat, resolve_model
from crl.protocols import Chat
from crl.records import FREE, Sample, Task
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.rounds.demonstrations import ScriptedRole
from crl.run.seeds import seed_for

TURNS, CONTEXT, NEW = 60, 2048, 64
HISTORIES: dict[str, HistoryConfig] = {
    "strip_thoughts": "strip_thoughts",
    "window": WindowHistory(window=8),
    "summarize": SummaryHistory(summarize=SummaryAt(at=1400)),
}


class Walk(Game):
    """Rooms with numbers on their walls; only the turn limit ends it."""

    kind: str = "walk"
    max_turns: int = TURNS

    def begin(self, random: Random) -> list[list[int]]:
        """The numbers in the rooms that are left."""
        return [[random.randint(0, 99) for _ in range(12)] for _ in range(TURNS + 1)]

    def goal(self, state: list[list[int]]) -> str:
        """What it is about."""
        return "Walk on."

    def look(self, state: list[list[int]]) -> str:
        """The room."""
        return f"Room {len(state)}: {' '.join(map(str, state[-1]))}"

    def actions(self, state: list[list[int]]) -> tuple[str, ...]:
        """Two ways."""
        return "up", "down"

    def act(self, state: list[list[int]], action: str) -> Move:
        """The next room."""
        state.pop()
        return Move()


def method_of(history: HistoryConfig) -> Method:
    """How the games are played; the environment is another one."""
    prompt = PromptConfig(
        system="Walk to the goal.", first="{goal}\n{experience}{observation}\n", following="{feedback}{observation}\n",
        summarize="Sum up what you know.",
    )  # fmt: skip
    actor = RoleConfig(context=CONTEXT, history=history, sampling=SamplingConfig(max_new_tokens=NEW))
    return Method(
        families=[FamilyConfig(name="walk", environment=FrozenLakeConfig())],
        roles={"actor": actor},
        rollout=RolloutConfig(action_format="word"),
        recipe={"kind": "baseline"},  # type: ignore[arg-type]
        prompts={"actor": prompt},
    )


def played(chat: Chat, history: HistoryConfig, games: int) -> list[PlayedEpisode]:
    """Games of a script that walks up, with thoughts where these are left out."""
    method = method_of(history)
    environment = Walk().make()
    slots = []
    for game, start in enumerate(environment.reset_many(range(games))):
        task = Task(
            episode_id=f"game{game}", round=1, family="walk", group=0, member=game, environment_seed=game, stream=FREE,
            goal=start.goal, first_observation=start.observation, query="",
        )  # fmt: skip
        slots.append(EpisodeSlot(task))
    random = np.random.default_rng(1)

    def say(row: int) -> str:
        thought = " ".join(map(str, random.integers(0, 100, 8)))
        return f"<think>{thought}</think>\n\nup" if history == "strip_thoughts" else f"{thought[:9]} up"

    return play_wave(
        ScriptedRole(chat, CONTEXT).saying(say), environment, slots, method=method, seed_of=lambda name: seed_for(0),
        sampling=method.roles["actor"].sampling, weights_digest="", stage="collect",
    )  # fmt: skip


def samples_of(episodes: Sequence[PlayedEpisode]) -> list[Sample]:
    """Every sequence of the episodes, with an advantage."""
    return [
        grpo_sample(record, "actor", 1.0, 1.0 if index % 2 else -1.0, weight, round=1)
        for index, episode in enumerate(episodes)
        for record, weight in weighed([(episode.generations, 1.0)], ActorObjective())[0]
    ]


def positions(samples: Sequence[Sample], micro_batch: int) -> int:
    """Positions that an update computes."""
    return sum(len(tree_of(part).token_ids) for [part] in zip(*cut(samples, micro_batch, 1), strict=True))


def distinct(samples: Sequence[Sample]) -> int:
    """Tokens of which what samples share is one."""
    return len(tree_of(sorted(samples, key=lambda sample: sample.token_ids)).token_ids)


def appended(samples: Sequence[Sample]) -> list[Sample]:
    """Episodes of one sequence with as many distinct tokens, and as many trained ones, spread over them."""
    whole, trained = distinct(samples), sum(sum(sample.loss_mask) for sample in samples)
    many = -(-whole // CONTEXT)
    lengths = [whole // many + (index < whole % many) + 1 for index in range(many)]
    random = np.random.default_rng(2)
    largest, found = max(max(sample.token_ids) for sample in samples), []
    for index, length in enumerate(lengths):
        ids = random.integers(1, largest + 1, length).tolist()
        own = trained // many + (index < trained % many)
        mask = np.zeros(length, dtype=int)
        mask[np.linspace(1, length - 1, own).astype(int)] = 1
        found.append(
            Sample(
                sample_id=f"appended{index}", round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=f"appended{index}", reward=1.0, advantage=1.0 if index % 2 else -1.0, weight=1.0 / many,
                temperature=1.0, token_ids=ids, loss_mask=mask.tolist(), logprobs=[0.0] * length,
            )
        )  # fmt: skip
    return found


def main() -> None:
    """Print a row for each history."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--games", type=int, default=2)
    parser.add_argument("--micro-batch", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--histories", nargs="+", choices=list(HISTORIES), default=list(HISTORIES))
    options = parser.parse_args()
    import torch

    source = resolve_model(options.model)
    chat = load_chat(source)
    role = RoleConfig(
        model=options.model, context=CONTEXT,
        optimizer=OptimizerConfig(kind="sgd", learning_rate=1e-9), deepspeed=DeepSpeedConfig(
            micro_batch=options.micro_batch, autocast="bfloat16" if torch.cuda.is_available() else "none"
        ),
    )  # fmt: skip
    trainer = Trainer(role, model_path=source.path, checkpoint=None, threads=options.threads, way="packed")
    clock = time.perf_counter if torch.cuda.is_available() else time.process_time

    def seconds(samples: Sequence[Sample]) -> float:
        begun = clock()
        trainer.update(samples, objectives(ActorObjective()))
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return clock() - begun

    print(f"{machine()}, {options.model}, {options.games} games of {TURNS} turns, micro-batch {options.micro_batch}\n")
    print("| history | sequences | tokens | distinct | computed | trained | s | s, appended | ratio |")
    print("|---" * 9 + "|")
    for name in options.histories:
        mine = samples_of(played(chat, HISTORIES[name], options.games))
        other = appended(mine)
        pairs: list[tuple[float, float]] = [(seconds(mine), seconds(other)) for _ in range(options.pairs + 1)][1:]
        columns: list[Any] = [
            name, len(mine), sum(len(sample.token_ids) for sample in mine), distinct(mine),
            positions(mine, options.micro_batch), sum(sum(sample.loss_mask) for sample in mine),
            f"{statistics.median(one for one, _ in pairs):.2f}",
            f"{statistics.median(two for _, two in pairs):.2f}", spread([one / two for one, two in pairs]),
        ]  # fmt: skip
        print(f"| {' | '.join(map(str, columns))} |", flush=True)
    trainer.dispose()


if __name__ == "__main__":
    main()
