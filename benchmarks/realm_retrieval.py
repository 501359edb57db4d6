"""Does retrieval find the experiences of the right realm? Share of top-1 by embedder, scope and form of the experience.

    python benchmarks/realm_retrieval.py [--worlds 5] [--embedders lexical,minilm]

A bank holds 32 experiences of each realm of crl/envs/realms.py, 8 of them true; the others name another pair of
symbols. A round's 64 queries (goal and first observation of held-out layouts, over all realms in turn) go through
`BankRetriever` with the retrieval settings of conf/realms.yaml. An experience is written as the extractor writes it
(`take C then F`), or with its realm in the text (`in r3 take C then F`). `nearest` takes the entry with the highest
cosine, `eq. 6` re-ranks with counters that advance from query to query. Printed: the share of chosen entries that are
of the query's realm, and that are its true experience, over all worlds; and the median seconds of 64 queries, embedding
them included. No run is needed.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from crl.bank.retrieve import BankRetriever
from crl.bank.snapshot import Snapshot
from crl.config import RetrievalConfig
from crl.config.load import load_experiment
from crl.envs.realms import RealmsConfig, RealmsEnvironment, experience_text, hidden_rule
from crl.policies.embedders import load_embedder
from crl.protocols import Embedder
from crl.records import BankEntry

NOTES, TRUE, QUERIES = 32, 8, 64
"""Experiences per realm, how many of them are true, queries per round."""
_EXPERIMENT = Path(__file__).parents[1] / "conf" / "realms.yaml"


@dataclass(frozen=True)
class Written:
    """An experience in the bank: its realm, its text, and whether that is the rule of the realm."""

    realm: int
    text: str
    true: bool


@dataclass(frozen=True)
class Asked:
    """A query of a round: the realm it is asked in, and its text."""

    realm: int
    text: str


@dataclass(frozen=True)
class Shares:
    """What the entries that were chosen for a round's queries are."""

    right_realm: float
    """Of the query's realm."""
    true_note: float
    """Of the query's realm, and its true experience."""
    seconds: float
    """Searching and re-ranking for all queries."""


def realms_of(count: int, world: int) -> list[RealmsConfig]:
    """The realms of a world, with the sizes of conf/realms.yaml."""
    overrides = {"method.families.0.repeat": count, "method.families.0.environment.world": world}
    families = load_experiment(_EXPERIMENT, overrides).method.families
    return [family.environment for family in families if isinstance(family.environment, RealmsConfig)]


def notes_of(realms: Sequence[RealmsConfig], *, named: bool) -> list[Written]:
    """The bank: the experiences of every realm, shuffled."""
    written = []
    for config in realms:
        random = np.random.default_rng([config.world, config.realm, NOTES])
        rule = hidden_rule(config)
        symbols = [chr(ord("A") + index) for index in range(config.symbols)]
        wrong = [(key, goal) for key in symbols for goal in symbols if key != goal and (key, goal) != rule]
        pairs = [rule] * TRUE + [wrong[int(at)] for at in random.integers(len(wrong), size=NOTES - TRUE)]
        for pair in pairs:
            text = experience_text(*pair)
            written.append(Written(config.realm, f"in r{config.realm} {text}" if named else text, pair == rule))
    order = np.random.default_rng([realms[0].world, NOTES]).permutation(len(written))
    return [written[int(at)] for at in order]


def queries_of(realms: Sequence[RealmsConfig]) -> list[Asked]:
    """A round's queries as stage `plan` writes them, realm after realm: no layout comes twice."""
    each = -(-QUERIES // len(realms))
    starts = [
        RealmsEnvironment(config).reset_many(range(config.held_out_from, config.held_out_from + each))
        for config in realms
    ]
    asked = [
        Asked(config.realm, f"{started[turn].goal}\n{started[turn].observation}")
        for turn in range(each)
        for config, started in zip(realms, starts, strict=True)
    ]
    return asked[:QUERIES]


def shares(
    embedder: Embedder, experiences: Sequence[Written], asked: Sequence[Asked], config: RetrievalConfig
) -> Shares:
    """Retrieve for a round of queries from a bank that nothing was chosen from yet."""
    bank = Snapshot.of(0, [_entry(place, each) for place, each in enumerate(experiences)])
    embeddings_ND = embedder.embed([each.text for each in experiences])
    queries_QD = embedder.embed([each.text for each in asked])
    began = time.perf_counter()
    retriever = BankRetriever(bank, embeddings_ND, [], config, round=1, bank_round=0)
    found = retriever.retrieve_many([(f"q{place}", f"r{each.realm}") for place, each in enumerate(asked)], queries_QD)
    seconds = time.perf_counter() - began
    chosen = [next((experiences[int(row.entry_id)] for row in rows if row.chosen), None) for rows in found]
    right = [each is not None and each.realm == query.realm for each, query in zip(chosen, asked, strict=True)]
    true = [of_realm and each is not None and each.true for each, of_realm in zip(chosen, right, strict=True)]
    return Shares(statistics.fmean(right), statistics.fmean(true), seconds)


def _entry(place: int, written: Written) -> BankEntry:
    digest = hashlib.sha256(written.text.encode()).hexdigest()
    return BankEntry(
        entry_id=str(place), family=f"r{written.realm}", content_digest=digest, segment="", embedding_file="",
        version=1, created_round=0, updated_round=0, order=place, operation_id="", distillation_id="",
        generation_id="", episode_ids=[], parents=[], embedder_cut=False,
    )  # fmt: skip


def table(names: Sequence[str], worlds: int) -> Iterator[str]:
    """Lines of the Markdown table, as they are measured; the worlds are 1, 2, …"""
    yield (
        "| realms | experience | scope | embedder | right realm: nearest | eq. 6 | true experience: nearest | eq. 6 | "
        "seconds |"
    )
    yield "|---:|---|---|---|---:|---:|---:|---:|---:|"
    settings = load_experiment(_EXPERIMENT).method.recipe.retrieval
    chance = TRUE / NOTES
    for count in (8, 16):
        places = [realms_of(count, world) for world in range(1, worlds + 1)]
        asked = [queries_of(realms) for realms in places]
        embedding = {name: _embedding_seconds(load_embedder(name), asked) for name in names}
        for named in (False, True):
            banks = [notes_of(realms, named=named) for realms in places]
            form = "`in r3 take C then F`" if named else "`take C then F`"
            for scope in ("bank", "family"):
                for name in names:
                    found = {
                        diversify: [
                            shares(
                                load_embedder(name), bank, round_queries,
                                settings.model_copy(update={"scope": scope, "diversify": diversify, "embedder": name}),
                            )
                            for bank, round_queries in zip(banks, asked, strict=True)
                        ]
                        for diversify in (False, True)
                    }  # fmt: skip
                    seconds = embedding[name] + statistics.median(each.seconds for each in found[True])
                    realm = " | ".join(_mean([each.right_realm for each in found[way]]) for way in (False, True))
                    true = " | ".join(_mean([each.true_note for each in found[way]]) for way in (False, True))
                    yield f"| {count} | {form} | {scope} | {name} | {realm} | {true} | {seconds:.3f} |"
        for scope, of_realm in (("bank", 1 / count), ("family", 1.0)):
            realm, true = f"{of_realm:.2f} | {of_realm:.2f}", f"{of_realm * chance:.2f} | {of_realm * chance:.2f}"
            yield f"| {count} | either | {scope} | (any entry at random) | {realm} | {true} | |"


def _embedding_seconds(embedder: Embedder, asked: Sequence[Sequence[Asked]]) -> float:
    """Median seconds of a round's queries, none of which the embedder has seen."""
    taken = []
    for queries in asked:
        began = time.perf_counter()
        embedder.embed([each.text for each in queries])
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def _mean(values: Sequence[float]) -> str:
    return f"{statistics.fmean(values):.2f}"


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", type=int, default=5)
    parser.add_argument("--embedders", default="lexical,minilm")
    arguments = parser.parse_args()
    for line in table(arguments.embedders.split(","), arguments.worlds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
