"""Distillation: a wave of finished episodes to extractor outputs and the operations they ask for.

One output per episode, or several (`distill.outputs`). The task family of an operation is the episode's, whatever the
text says; `update` is aimed at the entry that guided the episode. A trajectory that does not fit the context is
shortened in its middle, and the row says how many turns were shown; where even that does not help, the episode keeps a
row (reason `prompt_too_long`) with a generation without tokens, which trains nobody. Rows come back in the order of the
episodes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

import numpy as np

from crl.config import DistillConfig, PromptConfig, RoleConfig
from crl.config.mechanisms import Selection, SelectShare
from crl.extractor.outputs import (
    Distilled,
    Origin,
    SeedOf,
    distillation_row,
    generation_row,
    operation_row,
    parsed_output,
)
from crl.extractor.parse import example_texts
from crl.extractor.prompts import NO_OWN, distill_messages
from crl.extractor.trajectory import Trajectory, render_trajectory
from crl.protocols import Policy
from crl.records import Episode, Operation, Turn, turns_by_episode
from crl.run.seeds import number_of
from crl.text.outputs import Messages, Output, Prompt, room_for_prompt, sample_outputs

SHORTEST_TRAJECTORY = 120
"""Characters below which a trajectory says too little to distill anything from."""


@dataclass(frozen=True, slots=True)
class DistillItem:
    """A finished episode with its turns."""

    episode: Episode
    turns: tuple[Turn, ...]
    outcome: str | None = None
    """What the extractor reads of its outcome; None: what the episode says."""
    candidate: int = 0
    """Number of the output among those about the episode."""


def items_of(episodes: Sequence[Episode], turns: Sequence[Turn], config: DistillConfig) -> list[DistillItem]:
    """The episodes to distill, in their order: guided ones or all; those the environment broke have no outcome.

    `guided` takes all of a round in which nothing guided: an empty bank would stay empty for ever.
    """
    guided_only = config.episodes == "guided" and any(episode.guided for episode in episodes)
    by_episode = turns_by_episode(turns)
    return [
        DistillItem(episode, tuple(by_episode.get(episode.episode_id, ())))
        for episode in episodes
        if episode.error is None and (episode.guided or not guided_only)
    ]


def selected(items: Sequence[DistillItem], select: Selection, seed_of: SeedOf) -> list[DistillItem]:
    """Of these the ones that `distill.select` takes, in their order."""
    if select == "all":
        return list(items)
    if isinstance(select, SelectShare):
        order = np.random.default_rng(seed_of("select")).permutation(len(items))
        return [items[place] for place in sorted(order[: math.ceil(select.share * len(items))])]
    groups: dict[tuple[str, int], list[Episode]] = defaultdict(list)
    for item in items:
        groups[item.episode.family, item.episode.group].append(item.episode)
    found = set[str]()
    for (family, group), members in groups.items():
        wins = [each.episode_id for each in members if each.success]
        losses = [each.episode_id for each in members if not each.success]
        if select == "mixed" and wins and losses:
            found |= {*wins, *losses}
        elif wins and losses:
            generator = np.random.default_rng(seed_of(f"select/{family}/{group}"))
            found |= {wins[generator.integers(len(wins))], losses[generator.integers(len(losses))]}
    return [item for item in items if item.episode.episode_id in found]


def distill_wave(
    policy: Policy,
    items: Sequence[DistillItem],
    *,
    role: RoleConfig,
    prompt: PromptConfig,
    config: DistillConfig,
    seed_of: SeedOf,
    weights_digest: str,
    round: int,
    own: Mapping[str, PromptConfig] = NO_OWN,
) -> list[Distilled]:
    """Distill each item once; one result per item, in their order.

    `own` holds the prompts of task families that have one of their own; the others use `prompt`.
    """
    origin = Origin(round, "distill", weights_digest, config.format, role.sampling.temperature)
    room = room_for_prompt(policy, role)
    prompt_of = [own.get(item.episode.family, prompt) for item in items]
    fitted = [_fitted(policy, item, asked, config, room, seed_of) for item, asked in zip(items, prompt_of, strict=True)]
    prompts = [each for each, _ in fitted]
    outputs = sample_outputs(policy, prompts, role.sampling, batch=config.batch)
    examples = {
        item.episode.family: example_texts(asked, config.format, "distill")
        for item, asked in zip(items, prompt_of, strict=True)
    }
    return [
        _rows(item, output, shown, origin, config, examples[item.episode.family])
        for item, output, (_, shown) in zip(items, outputs, fitted, strict=True)
    ]


def distillation_id_of(episode_id: str, candidate: int = 0) -> str:
    """Id of the distillation of an episode; further outputs about it have their number."""
    return f"d-{episode_id}-n{candidate}" if candidate else f"d-{episode_id}"


def _fitted(
    policy: Policy, item: DistillItem, prompt: PromptConfig, config: DistillConfig, room: int, seed_of: SeedOf
) -> tuple[Prompt, int]:
    """The prompt with as much of the trajectory as fits into `room` tokens, and how many turns it shows in full."""

    def made(budget: int | None) -> tuple[Messages, list[int]]:
        messages = distill_messages(prompt, item.episode, item.turns, config, budget, item.outcome)
        return messages, policy.chat.opening(messages)

    def rendered(budget: int | None) -> Trajectory:
        return render_trajectory(item.turns, item.episode.last_observation, budget)

    distillation_id = distillation_id_of(item.episode.episode_id, item.candidate)
    seed = number_of(seed_of(distillation_id))
    messages, token_ids = made(None)
    if len(token_ids) <= room:
        return Prompt(distillation_id, messages, token_ids, seed), len(item.turns)
    fits, too_much = SHORTEST_TRAJECTORY, len(rendered(None).text)
    messages, token_ids = made(fits)
    if len(token_ids) > room:
        return Prompt(distillation_id, messages, None, seed), 0
    while too_much - fits > max(16, fits // 32):
        budget = (fits + too_much) // 2
        tried, tried_ids = made(budget)
        if len(tried_ids) <= room:
            fits, messages, token_ids = budget, tried, tried_ids
        else:
            too_much = budget
    return Prompt(distillation_id, messages, token_ids, seed), rendered(fits).turns_shown


def _rows(
    item: DistillItem, output: Output, shown: int, origin: Origin, config: DistillConfig, examples: Set[str]
) -> Distilled:
    episode, distillation_id = item.episode, output.prompt.name
    guide = next(iter(episode.entry_ids), None)
    parsed = parsed_output(output, origin, config, examples, guided=episode.guided)
    operations: list[Operation] = [
        operation_row(
            distillation_id,
            index,
            origin,
            operation.kind,
            episode.family,
            entry_id=guide if operation.kind == "update" else None,
            text=operation.text,
            episode_ids=[episode.episode_id],
        )
        for index, operation in enumerate(parsed.operations)
    ]
    distillation = distillation_row(
        output,
        origin,
        parsed,
        len(operations),
        family=episode.family,
        episode_id=episode.episode_id,
        guiding_entry_id=guide,
        turns=len(item.turns),
        turns_shown=shown,
        candidate=item.candidate,
    )
    return Distilled(distillation, operations, generation_row(output, origin))
