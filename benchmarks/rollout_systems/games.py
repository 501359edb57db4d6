"""The games that every way plays: whole groups of an experiment's first family, with its prompts."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crl.config import SamplingConfig
from crl.config.load import load_experiment
from crl.envs import make_environment
from crl.records import Task
from crl.rollout.play import EpisodeSlot, play_wave

MODEL = "smollm2-135m-instruct"
CONF = Path(__file__).parents[2] / "conf"


def own_dtype():
    """bfloat16, or float32 where this machine has no kernels for it."""
    from crl.policies.machine import computes_bfloat16  # commits to compare with may not have it

    return "bfloat16" if computes_bfloat16() else "float32"


def method_of(turns, dtype="bfloat16", *, model=MODEL, experiment=CONF / "minihack_room.yaml", **rollout):
    """The frozen part of an experiment: one family, free text, six new tokens per turn at temperature 1."""
    return load_experiment(
        experiment,
        {
            "method.roles.actor.model": model,
            "method.families.0.environment.max_turns": turns,
            "method.roles.actor.sampling": {"temperature": 1.0, "max_new_tokens": 6},
            "method.roles.actor.context": 2048,
            "method.roles.actor.dtype": dtype,
            **{f"method.rollout.{key}": value for key, value in rollout.items()},
        },
    ).method


def game(method):
    """A new environment of the family."""
    return make_environment(method.families[0])


class TurnClock:
    """Seconds by index of turn: turns that end together share the time since others last did.

    They may be of different indices. The shares sum to the time of all turns; the first turn reads the prompt.
    """

    def __init__(self):
        self._since, self._seconds, self._turns = time.perf_counter(), Counter(), Counter()

    def ended(self, indices):
        """Turns of these indices, from 0, have ended."""
        now = time.perf_counter()
        for index in indices:
            self._seconds[index] += (now - self._since) / len(indices)
            self._turns[index] += 1
        self._since = now

    def metrics(self):
        """By index: turns, and seconds per turn."""
        indices = sorted(self._turns)
        return {
            "turns_of": [self._turns[index] for index in indices],
            "seconds_of": [self._seconds[index] / self._turns[index] for index in indices],
        }


class Clocked:
    """A game that counts the turns of its rows; they may be stepped one by one, so `told` says which ended together."""

    def __init__(self, played_game):
        self._game, self._taken, self._ended, self.clock = played_game, Counter(), [], TurnClock()
        self.reset_many, self.steps_together = played_game.reset_many, getattr(played_game, "steps_together", False)

    def step_many(self, actions):
        self._ended += [self._taken[row] for row in actions]
        self._taken.update(actions.keys())
        return self._game.step_many(actions)

    def told(self, _progress):
        """What the loop calls when it has taken the turns that ended together."""
        self.clock.ended(self._ended)
        self._ended = []


def slots_of(method, groups, members):
    """Free episodes: `members` of each group play one level."""
    starts = game(method).reset_many(list(range(groups)))
    return [
        EpisodeSlot(
            Task(
                episode_id=f"g{group:03d}m{member:03d}",
                round=1,
                family=method.families[0].name,
                group=group,
                member=member,
                environment_seed=group,
                stream="free",
                goal=start.goal,
                first_observation=start.observation,
                query="",
            )
        )
        for group, start in enumerate(starts)
        for member in range(members)
    ]


def seed_of(episode_id):
    """Random numbers of an episode."""
    return np.random.SeedSequence([1, int(episode_id[1:4]), int(episode_id[5:])])


def played(policy, method, slots):
    """Play with this project's loop; turns, seconds, and tokens as the records count them."""
    began, clocked = time.perf_counter(), Clocked(game(method))
    episodes = play_wave(
        policy,
        clocked,
        slots,
        method=method,
        seed_of=seed_of,
        sampling=SamplingConfig(temperature=1.0, max_new_tokens=6),
        weights_digest="",
        stage="collect",
        progress=clocked.told,
    )
    seconds = time.perf_counter() - began
    return {
        "turns": sum(each.episode.turns for each in episodes),
        "seconds": seconds,
        **clocked.clock.metrics(),
        "sampled": sum(each.episode.tokens_sampled for each in episodes),
        "history": sum(each.episode.tokens_read + each.episode.tokens_sampled for each in episodes),
    }


@dataclass(frozen=True)
class Asked:
    """What a way is to play, from the command line: GROUPS MEMBERS TURNS DTYPE MODEL EXPERIMENT."""

    groups: int
    members: int
    turns: int
    dtype: str
    model: str
    experiment: str

    @classmethod
    def read(cls):
        """The arguments of this process."""
        return cls(*(int(value) for value in sys.argv[1:4]), *sys.argv[4:7])

    def method(self, turns=None):
        """That of the games, or of shorter ones to warm up with."""
        return method_of(
            turns or self.turns,
            self.dtype,
            model=self.model,
            experiment=self.experiment,
            wave_groups=self.groups,
            group_size=self.members,
        )

    def slots(self):
        """All episodes."""
        return slots_of(self.method(), self.groups, self.members)

    def warm_up(self, policy):
        """Play a small round first."""
        method = self.method(3)
        played(policy, method, slots_of(method, 1, 2))

    def played(self, policy):
        """Play all episodes."""
        return played(policy, self.method(), self.slots())


def report(metrics):
    """Print the metrics for the process that compares."""
    print("FIGURES " + json.dumps(metrics))
