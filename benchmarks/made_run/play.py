"""What a round plays: tasks, retrievals from the bank of the round before, episodes, evaluations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from crl.bank.snapshot import Snapshot
from crl.records import (
    EntryScore,
    Episode,
    Evaluation,
    Generation,
    Retrieval,
    RetrievalCount,
    Row,
    Task,
    Turn,
    schema_of,
)

from .columns import columns

FAMILIES = ("room", "maze", "lake", "keys")
_STOPS = ("success", "turn_limit", "failure", "context_limit")
Tables = dict[type[Row], pa.Table]


@dataclass
class Uses:
    """Counters of the entries that were ever chosen, by entry id, and the scores of those that were used."""

    count: dict[str, int]
    last_round: dict[str, int]
    scores: list[EntryScore]


def plan(
    rng: np.random.Generator, number: int, groups: int, members: int, candidates: int, bank: Snapshot, uses: Uses
) -> Tables:
    """Tasks of a round, and what guides the first half of every group: drawn so that few entries are chosen often."""
    count = groups * members
    group = np.repeat(np.arange(groups), members)
    member = np.tile(np.arange(members), groups)
    family = [FAMILIES[each % len(FAMILIES)] for each in group]
    guided = member < members // 2
    ids = [f"r{number:04d}-{f}-g{g:04d}-m{m:03d}" for f, g, m in zip(family, group, member, strict=True)]
    tables: Tables = {
        Task: columns(
            Task, count, episode_id=ids, round=number, family=family, group=group, member=member,
            environment_seed=group + 1000 * number, stream=np.where(guided, "guided", "free").tolist(),
            goal="reach the exit", first_observation=[f"a room with {g % 7} doors" for g in group],
            query=[f"reach the exit\na room with {g % 7} doors" for g in group],
        )
    }  # fmt: skip
    found: dict[str, list] = {name: [] for name in schema_of(Retrieval).names}
    entries = {name: bank.table[name].to_pylist() for name in ("entry_id", "family", "content_digest", "generation_id")}
    places: dict[str, list[int]] = {name: [] for name in FAMILIES}
    for row, name in enumerate(entries["family"]):
        places[name].append(row)
    for episode, name in ((i, f) for i, f, g in zip(ids, family, guided, strict=True) if g):
        held = places[name]
        if not held:
            continue
        # The square of a uniform number: old entries are found more often than new ones.
        drawn = np.unique((rng.random(candidates) ** 2 * len(held)).astype(int))
        similarity = np.sort(rng.random(len(drawn)))[::-1].round(6)
        rows = [held[each] for each in rng.permutation(drawn)]
        names = [entries["entry_id"][row] for row in rows]
        counts = [uses.count.get(each, 0) for each in names]
        recent = [number - uses.last_round.get(each, -9) <= 1 for each in names]
        score = similarity - 0.01 * np.log1p(counts) - 0.05 * np.array(recent)
        best = int(np.argmax(score))
        found["episode_id"] += [episode] * len(rows)
        found["family"] += [name] * len(rows)
        found["entry_id"] += names
        found["content_digest"] += [entries["content_digest"][row] for row in rows]
        found["generation_id"] += [entries["generation_id"][row] for row in rows]
        found["rank"] += range(len(rows))
        found["similarity"] += similarity.tolist()
        found["rank_score"] += np.linspace(1, 0, len(rows)).tolist()
        found["count"] += counts
        found["recent"] += recent
        found["score"] += score.tolist()
        found["chosen"] += [place == best for place in range(len(rows))]
        found["teaches"] += [False] * len(rows)
        uses.count[names[best]] = uses.count.get(names[best], 0) + 1
        uses.last_round[names[best]] = number
    found |= {"round": number, "bank_round": number - 1}
    tables[Retrieval] = columns(Retrieval, len(found["episode_id"]), **found)
    listed = sorted(uses.count)
    tables[RetrievalCount] = columns(
        RetrievalCount, len(listed), entry_id=listed, count=[uses.count[each] for each in listed],
        last_round=[uses.last_round[each] for each in listed],
    )  # fmt: skip
    return tables


def collect(rng: np.random.Generator, number: int, planned: Tables, texts: dict[str, str], tokens: int) -> Tables:
    """Episodes, turns and generations of what was planned. Guided ones win a little more often, some entries harm."""
    tasks = planned[Task].to_pydict()
    count = len(tasks["episode_id"])
    chosen = {row["episode_id"]: row for row in planned[Retrieval].to_pylist() if row["chosen"]}
    guide = [chosen.get(each) for each in tasks["episode_id"]]
    # A property of the text: some experiences help, some harm.
    worth = [0.0 if each is None else int(each["content_digest"][:4], 16) / 65535 - 0.35 for each in guide]
    broken = rng.random(count) < 0.01
    won = (rng.random(count) < np.clip(0.35 + np.array(worth), 0, 1)) & ~broken
    turns = rng.integers(1, 7, count)
    invalid = rng.binomial(turns, max(0.05, 0.4 - 0.02 * number))
    stops = np.array(_STOPS)[np.where(won, 0, rng.integers(1, 4, count))]
    generation_ids = [f"g-{each}" for each in tasks["episode_id"]]
    episodes = columns(
        Episode, count, **{name: tasks[name] for name in ("episode_id", "family", "group", "member")},
        environment_seed=tasks["environment_seed"], round=number,
        stream=["free" if each is None else "guided" for each in guide], guided=[each is not None for each in guide],
        goal="reach the exit",
        entry_ids=[[each["entry_id"]] if each else [] for each in guide],
        content_digests=[[each["content_digest"]] if each else [] for each in guide],
        experiences=[[texts[each["content_digest"]]] if each else [] for each in guide],
        success=won, reward=won.astype(float), turns=turns, invalid_actions=invalid, tokens_read=tokens // 2,
        tokens_sampled=tokens - tokens // 2,
        stop_reason=np.where(broken, "error", stops).tolist(),
        last_observation=[None if each else "the end" for each in broken],
        error=["step_failed" if each else None for each in broken],
        generation_ids=[[each] for each in generation_ids],
    )  # fmt: skip
    of = np.repeat(np.arange(count), turns)
    index = np.concatenate([np.arange(each) for each in turns])
    valid = index >= invalid[of]
    played = columns(
        Turn, len(of), episode_id=[tasks["episode_id"][each] for each in of], turn=index,
        generation_id=[generation_ids[each] for each in of],
        observation=[f"step {each}: a door, a wall" for each in index], output="go east",
        action=[("east" if each else None) for each in valid], valid=valid,
        feedback=[(None if each else "no such move") for each in valid], first_token=index * 6,
        last_token=index * 6 + 2, stop_reason="end_of_turn",
    )  # fmt: skip
    return {
        Episode: episodes,
        Turn: played,
        Generation: generations(
            rng, number, "collect", "actor", "episode", generation_ids, f"actor-{number - 1}", tokens
        ),
    }


def generations(
    rng: np.random.Generator, number: int, stage: str, role: str, kind: str, ids: list[str], weights: str, tokens: int,
    outputs: list[str] | None = None,
) -> pa.Table:  # fmt: skip
    """Token records of so many tokens each, half of them sampled."""
    count = len(ids)
    offsets = np.arange(count + 1) * tokens
    mask = np.tile(np.arange(tokens) >= tokens // 2, count)

    def lists(values: np.ndarray, kind: pa.DataType) -> pa.Array:
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, kind))

    return columns(
        Generation, count, generation_id=ids, round=number, stage=stage, role=role, kind=kind, weights_digest=weights,
        temperature=1.0, token_ids=lists(rng.integers(0, 30_000, count * tokens), pa.int32()),
        loss_mask=lists(mask, pa.int8()), logprobs=lists(np.where(mask, -0.5, 0.0), pa.float32()),
        prompt=[f"What was learned from {each}?" for each in ids], output=outputs or ["go east"] * count,
        stop_reason="end_of_turn",
    )  # fmt: skip


def evaluate(rng: np.random.Generator, number: int, seeds: int) -> Tables:
    """Held-out episodes: the same seeds with and without the bank (round 0: without only)."""
    conditions = ("with_bank", "without_bank") if number else ("without_bank",)
    listed = [(condition, family, seed) for condition in conditions for family in FAMILIES for seed in range(seeds)]
    chance = np.array([0.3 + 0.01 * number + (0.1 if condition == "with_bank" else 0.0) for condition, _, _ in listed])
    won = rng.random(len(listed)) < np.clip(chance, 0, 1)
    turns = rng.integers(1, 7, len(listed))
    return {
        Evaluation: columns(
            Evaluation, len(listed), evaluation_id=[f"r{number:04d}-{a}-{f}-{s}" for a, f, s in listed], round=number,
            condition=[condition for condition, _, _ in listed], family=[family for _, family, _ in listed],
            environment_seed=[9000 + seed for _, _, seed in listed],
            guided=[condition == "with_bank" for condition, _, _ in listed], entry_ids=[[] for _ in listed],
            success=won,
            reward=won.astype(float),
            turns=turns, invalid_actions=rng.binomial(turns, 0.2),
            tokens_read=[40 * t + 30 * (a == "with_bank") for t, (a, _, _) in zip(turns, listed, strict=True)],
            tokens_sampled=3 * turns,
            stop_reason=np.where(won, "success", "turn_limit").tolist(), actions=[["east"] * each for each in turns],
        )
    }  # fmt: skip
