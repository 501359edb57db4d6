"""The extractor's buffer: outputs on their way to training, and the reweighting of eq. 7.

An output enters with the first thing that it earns, collects what its uses earn until it is trained, and may re-enter
with new uses. What is scored once and for all (a malformed output, an answer) is trained once. An output whose text the
bank held already enters too and shares the uses of that text from then on: repeating what is known is no way out of
being scored. What can never be used again (its text left the bank) ends: with a reason where it was never trained;
nothing else is dropped. What earns how much is said elsewhere (`uses.py`, `rules/`): here it is a list. Pure
functions: buffer rows of the last round in, buffer rows of this round out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crl.config import ExtractorObjective
from crl.errors import RecordDamaged
from crl.records import BufferItem, Metric, UseReward

USED: Final = "used"
"""Kind of an output that is scored by its uses: what it earns adds up until it is trained."""
SCORED: Final = "scored"
"""Kind of an output that was scored when it was written, by its trial or by the trend, and not by uses."""
ORDERS_A_ROUND = 1_000_000
"""`entered_order` of buffers and pools: round * this + index of entry, unique over a run without carrying a counter."""


class HeldText(NamedTuple):
    """A text of the bank. An output may write several, and an entry is rewritten: only the two together name one."""

    entry_id: str
    """Entry that holds it."""
    generation_id: str
    """Output that wrote it."""


class Output(NamedTuple):
    """An output of the extractor that may enter the buffer."""

    generation_id: str
    origin: tuple[int, str]
    """(round, stage) that wrote it."""
    repeats: Sequence[HeldText] = ()
    """The texts it wrote that the bank held already, each once."""


class Earned(NamedTuple):
    """What an output earned by one event: all that the buffer knows of rules and options."""

    generation_id: str
    reward: float
    kind: str = USED
    """:data:`USED`: one of several uses. Else it is scored once: :data:`SCORED`, malformed, return or answer."""
    compared_in: str | None = None
    """Episode among whose outputs it is compared; None: it is compared with its batch."""
    advantage: float | None = None
    """Among these."""


def chances(weights_M: NDArray[np.float64]) -> NDArray[np.float64]:
    """p_i = w_i / sum of w; evenly where all are 0."""
    total = weights_M.sum()
    even_M: NDArray[np.float64] = np.full_like(weights_M, 1 / max(1, weights_M.size))
    return weights_M / total if total > 0 else even_M


def drawn_once(weights_M: NDArray[np.float64], batch: int, generator: np.random.Generator) -> list[int]:
    """Places of at most `batch` of M things, in the order in which they are drawn: without replacement, each time in
    proportion to the weights of those that are left. A buffer of fewer gives all it has; what weighs nothing stays."""
    chances_M = chances(weights_M)
    count = min(batch, int(np.count_nonzero(chances_M)))
    if not count:
        return []
    return [int(place) for place in generator.choice(chances_M.size, size=count, replace=False, p=chances_M)]


def reweight(train_count: int, last_trained_round: int | None, *, round: int, config: ExtractorObjective) -> float:
    """w(m) of eq. 7: 0 if (t - t_last) < delta, else (1 + c_train)^(-alpha)."""
    if last_trained_round is not None and round - last_trained_round < config.delta:
        return 0.0
    return float((1 + train_count) ** -config.alpha)


def _settled(previous: Iterable[BufferItem]) -> dict[str, BufferItem]:
    """Last round's rows as they are now: what was selected has been trained and waits for new uses.

    A malformed output, a `return`, an answer or an output scored at once cannot earn more, so its row ends with
    the round that trained it; so does that of an output that was dropped.
    """
    items = {}
    for item in previous:
        if item.status == "dropped":
            continue
        if item.status == "selected":
            if item.kind != "used":
                continue
            item = replace(item, status="trained", uses=0, score_sum=0.0)
        items[item.generation_id] = item
    return items


def earners(previous: Iterable[BufferItem], unrewarded: Set[str]) -> Callable[[UseReward], list[str]]:
    """Who earns by the use of a text: the output that wrote it and, in the order of the buffer, those that repeated it
    since. `unrewarded` are outputs that earn nothing by uses."""
    repeated_by: dict[HeldText, list[str]] = defaultdict(list)
    for item in _settled(previous).values():
        for text in _repeated_texts(item):
            repeated_by[text].append(item.generation_id)

    def of(use: UseReward) -> list[str]:
        named = (use.generation_id, *repeated_by.get(HeldText(use.entry_id, use.generation_id), ()))
        return [name for name in named if name not in unrewarded]

    return of


def fill_buffer(
    previous: Iterable[BufferItem],
    outputs: Sequence[Output],
    earned: Iterable[Earned],
    held: Set[HeldText] | None,
    *,
    round: int,
) -> list[BufferItem]:
    """The buffer after what outputs earned in a round, oldest entry first.

    `outputs` are those of this round, in the order in which they enter, and in any order earlier ones that earned
    something; these enter first, by what they earned first. `held` are the texts of the bank after the round (None:
    unknown; others than those of the outputs in question may be left out): what has no use and no text there is
    dropped, or just ends where it was trained before. Raises RecordDamaged where nothing says who wrote an output.
    """
    items, known = _settled(previous), {output.generation_id: output for output in outputs}
    earned_by: dict[str, list[Earned]] = defaultdict(list)
    for each in earned:
        earned_by[each.generation_id].append(each)
    written = {name: output for name, output in known.items() if output.origin[0] == round}
    entered = 0
    for name in (*(name for name in earned_by if name not in written), *written):
        events, item = earned_by.get(name, []), items.get(name)
        if item is None:
            if name not in known:
                raise RecordDamaged(
                    f"{name} earned {events[0].reward:g}, but nothing says which stage wrote it",
                    expected="the bank's snapshot to name the output behind every text",
                    where=f"round {round}",
                    next_step="run `crl verify` on the run",
                )
            output = known[name]
            if not events and not output.repeats:
                continue  # unscored, or it waits for the first use of what it wrote
            kind = events[0].kind if events else USED
            item = BufferItem(
                generation_id=name, generation_round=output.origin[0], generation_stage=output.origin[1], kind=kind,
                entered_round=round, entered_order=round * ORDERS_A_ROUND + entered, uses=0, score_sum=0.0,
                train_count=0, last_trained_round=None, status="waiting", reason=None,
                # What is scored once and for all has no share in later uses.
                repeats=[text.generation_id for text in output.repeats if kind == USED],
                repeated_entries=[text.entry_id for text in output.repeats if kind == USED],
                compared_in=events[0].compared_in if events else None,
                advantage=events[0].advantage if events else None,
            )  # fmt: skip
            entered += 1
        elif item.status == "trained":
            order = round * ORDERS_A_ROUND + entered
            item = replace(item, status="waiting", entered_round=round, entered_order=order)
            entered += 1
        for each in events:
            item = replace(item, uses=item.uses + 1, score_sum=item.score_sum + each.reward)
        items[name] = item
    kept = items.values() if held is None else _while_held(items.values(), held)
    return sorted(kept, key=lambda item: item.entered_order)


def _repeated_texts(item: BufferItem) -> list[HeldText]:
    return [HeldText(*named) for named in zip(item.repeated_entries, item.repeats, strict=True)]


def _while_held(items: Iterable[BufferItem], held: Set[HeldText]) -> list[BufferItem]:
    """The items; one of which no use can come any more is dropped, or left out where it was trained before."""
    writers = {text.generation_id for text in held}
    kept = []
    for item in items:
        if item.uses or item.generation_id in writers or not held.isdisjoint(_repeated_texts(item)):
            kept.append(item)
        elif not item.train_count:
            kept.append(replace(item, status="dropped", reason="text_left_bank"))
    return kept


def scored_items(buffer: Iterable[BufferItem]) -> list[BufferItem]:
    """What waits and has earned something; the rest waits for its first use."""
    return [item for item in buffer if item.status == "waiting" and item.uses > 0]


def ripe_items(buffer: Iterable[BufferItem], config: ExtractorObjective, *, round: int) -> list[BufferItem]:
    """What an update of the round may take, oldest first.

    An item is ripe once it is scored, unless eq. 7 gives it weight 0 (within delta rounds of its last training):
    training it would spend its uses for no gradient and shift the batch's baseline, so it keeps waiting.
    """
    return [
        item
        for item in sorted(scored_items(buffer), key=lambda item: item.entered_order)
        if reweight(item.train_count, item.last_trained_round, round=round, config=config) > 0
    ]


def oldest_wait(buffer: Iterable[BufferItem], *, round: int) -> int:
    """Rounds that the oldest scored item has waited."""
    return max((round - item.entered_round for item in scored_items(buffer)), default=0)


def buffer_metrics(
    buffer: Sequence[BufferItem], *, round: int, config: ExtractorObjective, trains: bool, stage: str = "credit"
) -> list[Metric]:
    """How full the buffer is, of what, and how long its oldest scored item has waited (rounds).

    Where the round trains the extractor (`trains`), it is an alarm that more is left, scored and not trained, than two
    rounds like this one take, or two batches, and the oldest has waited two rounds: a round that wrote much is none.
    """
    waiting, oldest = scored_items(buffer), oldest_wait(buffer, round=round)
    selected = sum(item.status == "selected" for item in buffer)
    metrics: dict[str, float] = {
        "buffer_waiting": len(waiting),
        "buffer_unused": sum(item.status == "waiting" and not item.uses for item in buffer),
        "buffer_selected": selected,
        "buffer_dropped": sum(item.status == "dropped" for item in buffer),
    }
    at_once = [SCORED] if any(item.kind == SCORED for item in buffer) else []
    for kind in ("used", "malformed", "return", "answer", *at_once):
        metrics[f"buffer_waiting_{kind}"] = sum(item.kind == kind for item in waiting)
    metrics["buffer_oldest_wait"] = oldest
    alarms = {}
    if trains and len(waiting) > 2 * max(config.batch, selected) and oldest >= 2:
        alarms["buffer_waiting"] = (
            f"{len(waiting)} scored outputs wait for batches of {config.batch}, at most {config.max_batches} a round: "
            "raise extractor_objective.max_batches, unless all of their rewards are equal"
        )
    return [
        Metric(round=round, stage=stage, name=name, value=float(value), alarm=alarms.get(name))
        for name, value in metrics.items()
    ]
