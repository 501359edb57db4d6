"""What a warm start taught, on held-out practice layouts: success under hints of different worth, truth of notes.

Figures for people, kept in the record of the warm start; nothing is learned from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from crl.config import Method
from crl.envs.realms import Layout, RealmsEnvironment, note
from crl.extractor.distill import DistillItem, distill_wave
from crl.lab.warm.actor import practice_slots
from crl.lab.warm.rows import STAGE, any_two
from crl.protocols import Policy
from crl.recipes.complementary.config import config_of
from crl.rollout.play import PlayedEpisode, play_wave
from crl.run.seeds import seed_for

Hint = Callable[[int, Layout], str | None]
"""From a slot and its layout to the experience that is shown."""


def actor_figures(actor: Policy, method: Method, seed: int, *, instructed: bool) -> dict[str, float]:
    """Success with the whole hint, half of it, none, and a wrong one; where hints were `instructed`, with the whole one
    in place of the instructions."""
    random = np.random.default_rng(seed_for(seed, "wrong"))
    hints: dict[str, Hint] = {
        "full": lambda slot, layout: note(layout.key, layout.goal),
        "partial": lambda slot, layout: f"take {layout.key}",
        "none": lambda slot, layout: None,
        "wrong": lambda slot, layout: note(*any_two(layout.cells, random)),
    }
    played = {kind: _played(actor, method, seed, kind, hint) for kind, hint in hints.items()}
    if instructed:
        played["instructed"] = _played(actor, method, seed, "instructed", hints["full"], as_instructions=True)
    return {
        f"success_{kind}": float(np.mean([each.episode.success for each, _ in shown])) for kind, shown in played.items()
    }


def extractor_figures(actor: Policy, extractor: Policy, method: Method, seed: int) -> dict[str, float]:
    """Share of sampled notes that are true, about won and about lost episodes; share of outputs in form."""
    shown = _played(
        actor, method, seed, "notes", lambda slot, layout: note(layout.key, layout.goal) if slot % 2 else None
    )
    results = distill_wave(
        extractor,
        [DistillItem(each.episode, tuple(each.turns)) for each, _ in shown],
        role=method.role("extractor"),
        prompt=method.prompts["distill"],
        config=config_of(method).distill,
        seed_of=lambda distillation_id: seed_for(seed, "test", distillation_id),
        weights_digest="",
        round=0,
    )
    right: dict[bool, list[bool]] = {True: [], False: []}
    for (each, layout), result in zip(shown, results, strict=True):
        for operation in result.operations:
            if operation.text is not None:
                right[each.episode.success].append(operation.text == note(layout.key, layout.goal))
    return {
        "true_about_won": float(np.mean(right[True])) if right[True] else 0.0,
        "true_about_lost": float(np.mean(right[False])) if right[False] else 0.0,
        "in_form": float(np.mean([result.distillation.reason_code == "ok" for result in results])),
    }


def _played(
    actor: Policy, method: Method, seed: int, kind: str, hint: Hint, *, as_instructions: bool = False
) -> list[tuple[PlayedEpisode, Layout]]:
    """Every held-out practice layout, played once under a hint."""
    environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
    held_out = method.families[0].evaluation_seeds
    seeds = range(held_out.start, held_out.start + held_out.count)
    slots = practice_slots(environment, seeds, lambda slot: hint(slot, environment.layout(slot)), f"test-{kind}")
    played = play_wave(
        actor,
        environment,
        [dataclasses.replace(slot, as_instructions=as_instructions) for slot in slots],
        method=method,
        seed_of=lambda episode_id: seed_for(seed, "test", episode_id),
        sampling=method.role("actor").sampling,
        weights_digest="",
        stage=STAGE,
    )
    return [(each, environment.layout(slot)) for slot, each in enumerate(played)]
