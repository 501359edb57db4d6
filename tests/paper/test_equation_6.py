"""Eq. 6: s(m) = s_rank(m) − λ·ln(1 + c(m)) − 1[recent(m)], against arithmetic written here from the paper."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.bank.retrieve import BankRetriever
from crl.bank.snapshot import Snapshot
from crl.config import RetrievalConfig
from crl.credit.uses import chosen_by_episode
from crl.records import BankEntry, RetrievalCount


def entry(number: int, family: str = "room") -> BankEntry:
    return BankEntry(
        entry_id=f"x{number}",
        family=family,
        content_digest=f"digest{number}",
        segment="",
        embedding_file="",
        version=1,
        created_round=1,
        updated_round=1,
        order=number,
        operation_id=f"o{number}",
        distillation_id=f"d{number}",
        generation_id=f"g{number}",
        episode_ids=[],
        parents=[],
        embedder_cut=False,
    )


def unit(seed: int, rows: int, dimension: int = 8) -> np.ndarray:
    vectors = np.random.default_rng(seed).normal(size=(rows, dimension))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def expected_plan(vectors, queries, counts, config, round_number):
    """Eq. 6 for one query after another, in plain float64 Python; counters advance with each choice."""
    count = dict.fromkeys(range(len(vectors)), 0) | {number: c for number, (c, _) in counts.items()}
    last = {number: when for number, (_, when) in counts.items()}
    plan = []
    for query in queries:
        cosine = [math.fsum(float(a) * float(b) for a, b in zip(row, query, strict=True)) for row in vectors]
        wanted = config.candidates * config.top_k
        nearest = sorted(range(len(vectors)), key=lambda number: (-cosine[number], number))[:wanted]
        rows = []
        for rank, number in enumerate(nearest):
            s_rank = -rank if config.rank_score == "negative_rank" else 1 - rank / wanted
            recent = number in last and last[number] > round_number - config.recent_rounds
            s = s_rank
            if config.diversify:
                s = s_rank - config.count_weight * math.log(1 + count[number]) - (1 if recent else 0)
            rows.append((number, cosine[number], s_rank, count[number], recent, s))
        able = [row for row in rows if row[1] >= config.threshold]
        chosen = []
        while able and len(chosen) < config.top_k:  # greedily, the best of those that are left; the nearer of equals
            best = able[0]
            for row in able:
                if row[5] > best[5]:
                    best = row
            able.remove(best)
            chosen.append(best[0])
            count[best[0]] += 1
            last[best[0]] = round_number
        plan.append((rows, chosen))
    return plan


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 10_000),
    size=st.integers(1, 30),
    queries=st.integers(1, 8),
    candidates=st.integers(1, 20),
    rank_score=st.sampled_from(["negative_rank", "fraction"]),
    count_weight=st.sampled_from([0.0, 0.4, 2.0]),
    recent_rounds=st.integers(0, 3),
    threshold=st.sampled_from([-1.0, 0.0, 0.4]),
    diversify=st.booleans(),
    top_k=st.sampled_from([1, 1, 2, 3, 16]),
    counts=st.dictionaries(st.integers(0, 29), st.tuples(st.integers(1, 9), st.integers(1, 6)), max_size=10),
)
def test_every_term_and_choice(
    seed, size, queries, candidates, rank_score, count_weight, recent_rounds, threshold, diversify, top_k, counts
):
    vectors, asked = unit(seed, size), unit(seed + 1, queries)
    counts = {number: value for number, value in counts.items() if number < size}
    config = RetrievalConfig(
        candidates=candidates,
        rank_score=rank_score,
        count_weight=count_weight,
        recent_rounds=recent_rounds,
        threshold=threshold,
        diversify=diversify,
        top_k=top_k,
    )
    rows_of_counts = [RetrievalCount(entry_id=f"x{n}", count=c, last_round=r) for n, (c, r) in counts.items()]
    bank = Snapshot.of(5, [entry(number) for number in range(size)])
    retriever = BankRetriever(bank, vectors, rows_of_counts, config, round=6, bank_round=5)
    plan = retriever.retrieve_many([(f"e{number}", "room") for number in range(queries)], asked)
    for found, (rows, chosen) in zip(plan, expected_plan(vectors, asked, counts, config, 6), strict=True):
        assert [row.entry_id for row in found] == [f"x{row[0]}" for row in rows]
        assert [row.rank for row in found] == list(range(len(rows)))
        for got, (_, cosine, s_rank, c, recent, s) in zip(found, rows, strict=True):
            assert got.similarity == pytest.approx(cosine, rel=1e-9, abs=1e-12)
            assert (got.rank_score, got.count, got.recent) == (s_rank, c, recent)
            assert got.score == pytest.approx(s, rel=1e-12, abs=1e-12)
        assert [row.entry_id for row in found if row.chosen] == [f"x{row[0]}" for row in rows if row[0] in chosen]
        shown = chosen_by_episode(found)
        assert [row.entry_id for row in shown.get(found[0].episode_id, [])] == [f"x{number}" for number in chosen]


def test_a_worked_example():
    """Three entries at ranks 0, 1, 2; the first was used three times and just now: −0.4·ln 4 − 1 = −1.5545 < −1."""
    vectors = np.array([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]], dtype=np.float32)
    config = RetrievalConfig(candidates=16)
    counts = [RetrievalCount(entry_id="x0", count=3, last_round=7)]
    bank = Snapshot.of(6, [entry(n) for n in range(3)])
    retriever = BankRetriever(bank, vectors, counts, config, round=7, bank_round=6)
    rows = retriever.retrieve("e", "room", np.array([1.0, 0.0], dtype=np.float32))
    assert [row.score for row in rows] == pytest.approx([-0.4 * math.log(4) - 1, -1.0, -2.0])
    assert [row.chosen for row in rows] == [False, True, False]
