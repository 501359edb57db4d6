"""The games that every way plays: MiniHack-Room-Ultimate-5x5, whole groups, prompts of conf/prompts/minihack.yaml."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import numpy as np

from crl.config import SamplingConfig
from crl.config.load import load_experiment
from crl.envs import make_environment
from crl.records import Task
from crl.rollout.play import EpisodeSlot, play_wave

MODEL = "smollm2-135m-instruct"
CONF = Path(__file__).parents[2] / "conf"


def method_of(turns, **rollout):
    """The frozen part of an experiment: one family, free text, six new tokens per turn at temperature 1."""
    return load_experiment(
        CONF / "minihack_room.yaml",
        {
            "method.families.0.environment.max_turns": turns,
            "method.roles.actor.sampling": {"temperature": 1.0, "max_new_tokens": 6},
            "method.roles.actor.context": 2048,
            **{f"method.rollout.{key}": value for key, value in rollout.items()},
        },
    ).method


def game(method):
    """A new environment of the family."""
    return make_environment(method.families[0])


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
    began = time.perf_counter()
    episodes = play_wave(
        policy,
        game(method),
        slots,
        method=method,
        seed_of=seed_of,
        sampling=SamplingConfig(temperature=1.0, max_new_tokens=6),
        weights_digest="",
        stage="collect",
    )
    seconds = time.perf_counter() - began
    return {
        "turns": sum(each.episode.turns for each in episodes),
        "seconds": seconds,
        "sampled": sum(each.episode.tokens_sampled for each in episodes),
        "history": sum(each.episode.tokens_read + each.episode.tokens_sampled for each in episodes),
    }


def arguments():
    """GROUPS MEMBERS TURNS, from the command line."""
    return tuple(int(value) for value in sys.argv[1:4])


def report(figures):
    """Print the figures for the process that compares."""
    print("FIGURES " + json.dumps(figures))
