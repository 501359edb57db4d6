"""The extractor's buffer: outputs on their way to training (section 3), and the reweighting of eq. 7.

An output enters at its first use (a malformed one at once, a `return` if it is scored), collects uses until it is
trained, and may re-enter with new uses. An update takes the oldest; the rest wait and are never dropped. Pure
functions: buffer rows of the last round in, buffer rows of this round out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from crl.config import ExtractorObjective
from crl.errors import RecordDamaged
from crl.records import BufferItem, Distillation, Metric, UseReward

_ORDERS_A_ROUND = 1_000_000
"""`entered_order` is round * this + index of entry: unique over a run without carrying a counter."""


def reweight(train_count: int, last_trained_round: int | None, *, round: int, config: ExtractorObjective) -> float:
    """w(m) of eq. 7: 0 if (t - t_last) < delta, else (1 + c_train)^(-alpha)."""
    if last_trained_round is not None and round - last_trained_round < config.delta:
        return 0.0
    return float((1 + train_count) ** -config.alpha)


def _settled(previous: Iterable[BufferItem]) -> dict[str, BufferItem]:
    """Last round's rows as they stand now: what was selected has been trained and waits for new uses.

    A malformed output or a `return` cannot be used again, so its row ends with the round that trained it.
    """
    items = {}
    for item in previous:
        if item.status == "selected":
            if item.kind != "used":
                continue
            item = replace(item, status="trained", uses=0, score_sum=0.0)
        items[item.generation_id] = item
    return items


def _scored_at_once(
    row: Distillation, config: ExtractorObjective, free_means: Mapping[str, float]
) -> tuple[str, float] | None:
    """(kind, reward) of an output that is scored without a use; None for one that waits for uses, or is unscored."""
    if row.verdict == "malformed":
        return "malformed", config.malformed_reward
    if row.verdict != "return" or config.return_reward == "none":
        return None
    if config.return_reward == "free_mean":
        mean = free_means.get(row.episode_id) if row.episode_id is not None else None
        return None if mean is None else ("return", mean)
    return "return", float(config.return_reward)


def fill_buffer(
    previous: Sequence[BufferItem],
    uses: Sequence[UseReward],
    distillations: Sequence[Distillation],
    *,
    round: int,
    config: ExtractorObjective,
    origins: Mapping[str, tuple[int, str]],
    free_means: Mapping[str, float],
) -> list[BufferItem]:
    """The buffer after this round's uses and outputs, oldest entry first.

    `uses` add themselves and their reward to the output that wrote the text; `distillations` are the outputs written
    this round (distill and merge). `origins` says for an output by generation id which (round, stage) wrote it; it is
    read for outputs that enter. `free_means` is `credit.free_means` of this round's episodes, for
    `return_reward: free_mean` (a `return` whose group has no free member stays unscored). New items enter in the order
    of first use, then in the order of `distillations`. Raises RecordDamaged for a used output without an origin.
    """
    items = _settled(previous)
    entered = 0

    def enter(generation_id: str, kind: str, origin: tuple[int, str]) -> BufferItem:
        nonlocal entered
        order = round * _ORDERS_A_ROUND + entered
        entered += 1
        return BufferItem(
            generation_id=generation_id, generation_round=origin[0], generation_stage=origin[1], kind=kind,
            entered_round=round, entered_order=order, uses=0, score_sum=0.0, train_count=0,
            last_trained_round=None, status="waiting", reason=None,
        )  # fmt: skip

    for use in uses:
        generation_id = use.generation_id
        item = items.get(generation_id)
        if item is None:
            if generation_id not in origins:
                raise RecordDamaged(
                    f"experience {use.entry_id} was used, but nothing says which stage wrote {generation_id}",
                    expected="the bank's snapshot to name the output behind every text",
                    where=f"round {use.round}, episode {use.episode_id}",
                    next_step="run `crl verify` on the run",
                )
            item = enter(generation_id, "used", origins[generation_id])
        elif item.status == "trained":
            fresh = enter(generation_id, item.kind, (item.generation_round, item.generation_stage))
            item = replace(fresh, train_count=item.train_count, last_trained_round=item.last_trained_round)
        items[generation_id] = replace(item, uses=item.uses + 1, score_sum=item.score_sum + use.reward)
    for row in distillations:
        scored = _scored_at_once(row, config, free_means)
        if scored is not None:
            kind, reward = scored
            item = enter(row.generation_id, kind, origins.get(row.generation_id, (row.round, row.kind)))
            items[row.generation_id] = replace(item, uses=1, score_sum=reward)
    return sorted(items.values(), key=lambda item: item.entered_order)


def select_batch(
    buffer: Sequence[BufferItem], config: ExtractorObjective, *, round: int
) -> tuple[list[BufferItem], list[BufferItem]]:
    """The batch of this round's update, and the buffer after it.

    The oldest `config.batch` ripe items by order of entry, or nothing when fewer are ripe. The selected items are
    returned as they stand **before** this training (eq. 7 counts earlier ones); in the buffer returned they have
    status `selected`, one more training and this round as the last. All others are unchanged.

    Eq. 7 gives weight 0 within delta rounds of the last training. Training such an item would spend its uses for no
    gradient and shift the batch's baseline, so it keeps waiting and is ripe when its weight is no longer 0.
    """
    ripe = [
        item
        for item in sorted(buffer, key=lambda item: item.entered_order)
        if item.status == "waiting"
        and reweight(item.train_count, item.last_trained_round, round=round, config=config) > 0
    ]
    if len(ripe) < config.batch:
        return [], list(buffer)
    selected = ripe[: config.batch]
    chosen = {item.generation_id for item in selected}
    after = [
        replace(item, status="selected", train_count=item.train_count + 1, last_trained_round=round)
        if item.generation_id in chosen
        else item
        for item in buffer
    ]
    return selected, after


def buffer_metrics(
    buffer: Sequence[BufferItem], *, round: int, config: ExtractorObjective, stage: str = "credit"
) -> list[Metric]:
    """How full the buffer is, of what, and how long its oldest item has waited (rounds).

    A round trains one batch at most and nothing is ever dropped, so more scored outputs a round than a batch holds make
    a backlog that only grows: more than two batches waiting is an alarm.
    """
    waiting = [item for item in buffer if item.status == "waiting"]
    figures = {f"buffer_{status}": sum(item.status == status for item in buffer) for status in ("waiting", "selected")}
    for kind in ("used", "malformed", "return"):
        figures[f"buffer_waiting_{kind}"] = sum(item.kind == kind for item in waiting)
    figures["buffer_oldest_wait"] = max((round - item.entered_round for item in waiting), default=0)
    alarms = {}
    if len(waiting) > 2 * config.batch:
        alarms["buffer_waiting"] = (
            f"{len(waiting)} outputs wait for batches of {config.batch}, one a round: they are trained ever later; "
            "raise extractor_objective.batch, or distil fewer episodes"
        )
    return [
        Metric(round=round, stage=stage, name=name, value=float(value), alarm=alarms.get(name))
        for name, value in figures.items()
    ]
