"""What a round learns: extractor outputs and their operations, credit, scores, the buffer, the weights."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from crl.bank.segments import text_digest
from crl.bank.snapshot import Snapshot
from crl.credit.uses import entry_scores
from crl.records import (
    BufferItem,
    Credit,
    Distillation,
    EntryScore,
    Episode,
    Generation,
    Metric,
    Operation,
    Sample,
    Weights,
    rows_of,
    schema_of,
    table_of,
)

from .columns import columns
from .play import FAMILIES, Tables, Uses, generations

_MALFORMED = ("no_operation", "no_json", "unknown_kind", "empty_text")


@dataclass
class Outputs:
    """Extractor outputs on their way to training: round and stage that wrote each, uses and outcomes so far."""

    origin: dict[str, tuple[int, str]] = field(default_factory=dict)
    uses: dict[str, int] = field(default_factory=dict)
    score: dict[str, float] = field(default_factory=dict)
    trained: dict[str, int] = field(default_factory=dict)


def distill(
    rng: np.random.Generator, number: int, bank: Snapshot, episodes: pa.Table, changes: int, tokens: int
) -> Tables:
    """About so many adds and updates (2 of 3 update), one an output, beside malformed and returned ones."""
    held: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for family, entry in zip(*(bank.table[name].to_pylist() for name in ("family", "entry_id")), strict=True):
        held[family].append(entry)
    played = list(zip(*(episodes[name].to_pylist() for name in ("episode_id", "family", "entry_ids")), strict=True))
    shown, operations = [], []
    fresh = {family: iter(rng.permutation(len(entries)).tolist()) for family, entries in held.items()}
    for index in range(max(len(played) // 2, changes)):
        episode, family, guides = played[index % len(played)]
        name = f"r{number:04d}-d{index:04d}"
        place = next(fresh[family], None) if rng.random() < 2 / 3 else None
        kind = "add" if place is None else "update"
        verdict = str(rng.choice(["malformed", "return"])) if index >= changes or rng.random() < 0.15 else kind
        shown.append((name, episode, family, guides[0] if guides else None, verdict))
        if verdict not in ("add", "update"):
            continue
        entry = f"e-{name}" if place is None else held[family][place]
        operations.append(
            operation(
                number, name, kind, family, entry, [] if kind == "add" else [entry], [episode], _text(number, index)
            )
        )
    ids = [each[0] for each in shown]
    turns = dict(zip(episodes["episode_id"].to_pylist(), episodes["turns"].to_pylist(), strict=True))
    malformed = [each[4] == "malformed" for each in shown]
    return {
        Distillation: columns(
            Distillation, len(shown), distillation_id=ids, round=number, kind="distill",
            family=[each[2] for each in shown], episode_id=[each[1] for each in shown],
            guiding_entry_id=[each[3] for each in shown], source_entry_ids=[[] for _ in shown], generation_id=ids,
            format="lines", reason_code=[str(rng.choice(_MALFORMED)) if bad else "ok" for bad in malformed],
            verdict=[each[4] for each in shown], operations=[int(each[4] in ("add", "update")) for each in shown],
            turns=[turns[each[1]] for each in shown], turns_shown=[turns[each[1]] for each in shown],
        ),
        Operation: table_of(Operation, operations),
        Generation: generations(
            rng, number, "distill", "extractor", "distill", ids, f"extractor-{number - 1}", tokens,
            [f"{each[4]} {each[0]}" for each in shown],
        ),
    }  # fmt: skip


def merge(rng: np.random.Generator, number: int, bank: Snapshot, touched: set[str], merges: int, tokens: int) -> Tables:
    """So many merges of two entries that nothing else of the round touches, and as many drops of a third."""
    held: dict[str, list[str]] = {}
    for family, entry in zip(*(bank.table[name].to_pylist() for name in ("family", "entry_id")), strict=True):
        if entry not in touched:
            held.setdefault(family, []).append(entry)
    shown, operations = [], []
    for index in range(merges):
        family = FAMILIES[index % len(FAMILIES)]
        entries = held.get(family, [])
        if len(entries) < 4:
            continue
        sources = [entries.pop(int(rng.integers(len(entries)))) for _ in range(3)]
        name = f"r{number:04d}-m{index:04d}"
        shown.append((name, family, sources))
        text = _text(number, 100_000 + index)
        operations.append(operation(number, name, "merge", family, f"e-{name}", sources[:2], [], text))
        operations.append(operation(number, name, "drop", family, sources[2], [], [], None, index=1))
    ids = [each[0] for each in shown]
    return {
        Distillation: columns(
            Distillation, len(shown), distillation_id=ids, round=number, kind="merge",
            family=[each[1] for each in shown], episode_id=None, guiding_entry_id=None,
            source_entry_ids=[each[2] for each in shown], generation_id=ids, format="json", reason_code="ok",
            verdict="merge", operations=2, turns=None, turns_shown=None,
        ),
        Operation: table_of(Operation, operations),
        Generation: generations(
            rng, number, "merge", "extractor", "merge", ids, f"extractor-{number - 1}", tokens,
            [f"merge {each}" for each in ids],
        ),
    }  # fmt: skip


def operation(
    number: int, name: str, kind: str, family: str, entry: str, parents: list[str], episodes: list[str],
    text: str | None, index: int = 0,
) -> Operation:  # fmt: skip
    """One operation of the output `name`."""
    return Operation(
        operation_id=f"{name}-o{index}", distillation_id=name, generation_id=name, round=number, index=index, kind=kind,
        family=family, entry_id=entry, parents=parents, episode_ids=episodes, text=text,
        embedder_cut=None if text is None else False,
    )  # fmt: skip


def credit(rng: np.random.Generator, number: int, episodes: pa.Table, planned: dict, made: list[str], uses: Uses,
           outputs: Outputs) -> Tables:  # fmt: skip
    """Credit of every guided episode against the free ones of its group; scores and buffer so far."""
    played = rows_of(Episode, episodes)
    free: dict[int, list[float]] = {}
    for each in played:
        if not each.guided:
            free.setdefault(each.group, []).append(1.0 if each.success else -1.0)
    credits = []
    for each in played:
        if not each.guided:
            continue
        outcome, twins, writer = 1.0 if each.success else -1.0, free.get(each.group), planned[each.episode_id]
        mean = sum(twins) / len(twins) if twins else None
        credits.append(
            Credit(
                round=number, episode_id=each.episode_id, entry_id=each.entry_ids[0],
                content_digest=each.content_digests[0], generation_id=writer, outcome=outcome, free_mean=mean,
                guided_minus_free=None if mean is None else outcome - mean,
            )
        )  # fmt: skip
        if writer in outputs.origin:
            outputs.uses[writer] = outputs.uses.get(writer, 0) + 1
            outputs.score[writer] = outputs.score.get(writer, 0.0) + outcome
    for name in made:
        outputs.origin[name] = (number, "merge" if "-m" in name else "distill")
    uses.scores = entry_scores(uses.scores, credits)
    waiting = list(outputs.origin)
    ripe = [name for name in waiting if outputs.uses.get(name, 0) > 1][:8]
    status = dict.fromkeys(waiting, "waiting") | dict.fromkeys(ripe, "selected")
    status |= {name: "dropped" for name in waiting if number - outputs.origin[name][0] > 5 and name not in ripe}
    buffer = columns(
        BufferItem, len(waiting), generation_id=waiting, generation_round=[outputs.origin[each][0] for each in waiting],
        generation_stage=[outputs.origin[each][1] for each in waiting], kind="used",
        entered_round=[outputs.origin[each][0] for each in waiting], entered_order=np.arange(len(waiting)),
        uses=[outputs.uses.get(each, 0) for each in waiting],
        score_sum=[outputs.score.get(each, 0.0) for each in waiting],
        train_count=[int(each in ripe) for each in waiting],
        last_trained_round=[number if each in ripe else None for each in waiting],
        status=[status[each] for each in waiting],
        reason=["too_old" if status[each] == "dropped" else None for each in waiting],
    )  # fmt: skip
    for name in [each for each in waiting if status[each] != "waiting"]:
        del outputs.origin[name]
    metrics = [("share_malformed", rng.random()), ("waiting", float(len(waiting)))]
    return {
        Credit: table_of(Credit, credits),
        EntryScore: table_of(EntryScore, uses.scores),
        BufferItem: buffer,
        Sample: schema_of(Sample).empty_table(),
        Metric: table_of(
            Metric,
            [Metric(round=number, stage="credit", name=each, value=value, alarm=None) for each, value in metrics],
        ),
    }  # fmt: skip


def weights(role: str, number: int) -> Weights:
    """The weights of a role after a round."""
    return Weights(
        role=role, round=number, updates=number, source="tiny", base_digest=text_digest(role),
        checkpoint=f"rounds/{number:04d}/update_{role}/checkpoint" if number else None,
        weights_digest=f"{role}-{number}",
    )  # fmt: skip


def update(rng: np.random.Generator, number: int, role: str) -> Tables:
    """Weights and metrics of an update."""
    names = ("loss", "clipped_low", "clipped_high")
    stage = f"update_{role}"
    metrics = [Metric(round=number, stage=stage, name=each, value=float(rng.random()), alarm=None) for each in names]
    return {Weights: table_of(Weights, [weights(role, number)]), Metric: table_of(Metric, metrics)}


def _text(number: int, index: int) -> str:
    return f"When the door of round {number} is shut, try way {index}: look left, then right, then go on."
