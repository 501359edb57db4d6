"""How long episodes and distillations will be, from a few games of random legal actions: no model is loaded.

A model that has learned plays shorter games, one that thinks writes as many tokens as it may: a turn counts as its
action where answers are constrained to actions, and as `max_new_tokens` where they are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from crl.config import FamilyConfig, Method, RoleConfig, SamplingConfig
from crl.envs import make_environment
from crl.extractor.distill import items_of
from crl.learn.packing import cut, shared_prefix, tree_of
from crl.protocols import Lesson
from crl.recipes.complementary.config import ACTOR, EXTRACTOR, config_of
from crl.recipes.complementary.demonstrations import (
    ScriptedRole,
    Watched,
    as_answer,
    play_script,
    sample_of,
    write_script,
)
from crl.records import FREE, Generation, Task
from crl.rollout.environments import Readable
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rounds.chats import chat_of
from crl.rounds.lengths import Lengths
from crl.run.seeds import number_of, seed_for

_GROUPS, _MEMBERS = 2, 4
"""Groups of each family that are played, and members of each at most."""


@dataclass(frozen=True, slots=True)
class _Played:
    """The outputs of one family, which makes `share` of a round."""

    share: float
    generations: list[Generation]
    turns: float
    sampling: SamplingConfig


def typical_lengths(method: Method) -> dict[str, Lengths]:
    """Lengths by role. Raises BadInput where a model or an environment is not on this machine."""
    config, voices = config_of(method), {name: _voice(method, name) for name in method.recipe.roles()}
    total = method.episodes
    actor: list[_Played] = []
    extractor: list[_Played] = []
    for family in method.families:
        games = _games(method, voices[ACTOR], family)
        share = family.groups * method.group_size(family) / total
        turns = sum(game.episode.turns for game in games) / len(games)
        sampling = method.sampling(ACTOR, family.name)
        actor.append(_Played(share, [game.generation for game in games], turns, sampling))
        if config.has_bank:
            items = items_of(
                [game.episode for game in games],
                [turn for game in games for turn in game.turns],
                config.distill.model_copy(update={"episodes": "all"}),
            )
            written = write_script(method, voices[EXTRACTOR], items, [Lesson("return")] * len(items))
            own = method.role(EXTRACTOR).sampling
            extractor.append(_Played(share, [each.generation for each in written], 1.0, own))
    found = {ACTOR: _lengths(method.role(ACTOR), actor)}
    return found | ({EXTRACTOR: _lengths(method.role(EXTRACTOR), extractor)} if extractor else {})


def _voice(method: Method, role: str) -> ScriptedRole:
    return ScriptedRole(chat_of(method, role), method.role(role).context)


def _games(method: Method, actor: ScriptedRole, family: FamilyConfig) -> list[PlayedEpisode]:
    environment = Watched(make_environment(family))
    random = np.random.default_rng(number_of(seed_for(0)) % 2**32)
    members = min(_MEMBERS, method.group_size(family))
    try:
        seeds = [family.train_seeds.start + group % family.train_seeds.count for group in range(_GROUPS)]
        starts = Readable(environment).reset_many(seeds)
        slots = [
            EpisodeSlot(
                Task(
                    episode_id=f"estimate-{family.name}-{group}-{member}", round=0, family=family.name, group=group,
                    member=member, environment_seed=seeds[group], stream=FREE, goal=start.goal,
                    first_observation=start.observation, query="",
                )
            )
            for group, start in enumerate(starts)
            for member in range(members)
        ]  # fmt: skip

        def move(row: int) -> str:
            legal = environment.actions[row]
            action = str(random.choice(legal)) if legal else environment.oracle(row)
            return as_answer(method, action or "")

        return play_script(method, actor, environment, slots, move, stage="estimate")
    finally:
        environment.close()


def _lengths(role: RoleConfig, played: Sequence[_Played]) -> Lengths:
    """The mean over families, each with its share."""
    tokens = sampled = read = computed = 0.0
    for family in played:
        records = [each for each in family.generations if sum(each.loss_mask)]
        if not records:
            continue
        samples = [sample_of(each) for each in records]
        rows = [batch for rank in cut(samples, role.deepspeed.micro_batch, 1) for batch in rank]
        length = sum(len(each.token_ids) for each in records) / len(records)
        written = sum(sum(each.loss_mask) for each in records) / len(records)
        more = 0.0
        if family.sampling.constrain == "none":
            more = min(family.turns * family.sampling.max_new_tokens - written, role.context - length)
        tokens += family.share * (length + more)
        sampled += family.share * (written + more)
        read += family.share * (length - _shared(records) / len(records) + more)
        computed += family.share * (sum(len(tree_of(batch).token_ids) for batch in rows) / len(records) + more)
    return Lengths(tokens, sampled, read, computed)


def _shared(records: Sequence[Generation]) -> int:
    """Tokens of prompts that sampling does not read again. Of later turns nothing is shared, whatever they hold."""
    prompts = sorted(each.token_ids[: each.loss_mask.index(1)] for each in records)
    return sum(shared_prefix(before, after) for before, after in pairwise(prompts))
