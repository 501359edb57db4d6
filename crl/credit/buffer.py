"""The extractor's buffer: outputs on their way to training, and the reweighting of eq. 7.

An output enters at its first use (a malformed one at once, where it is scored; a `return` as well), collects uses until
it is trained, and may re-enter with new uses. An output whose text the bank held already enters too and shares the uses
of that text from then on: repeating what is known is no way out of being scored. An update takes the oldest; a round
trains as many batches as are full. An answer to a question, where those are trained, enters scored and is trained once.
What can never be used again (its text left the bank) ends: with a reason where it was never trained; nothing else is
dropped. Pure functions: buffer rows of the last round in, buffer rows of this round out.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Final, NamedTuple

from crl.config import ExtractorObjective
from crl.credit.answers import AnswerReward
from crl.credit.other_credit import Tasks, one_per_task
from crl.errors import RecordDamaged
from crl.records import BufferItem, Distillation, Metric, UseReward

SCORED: Final = "scored"
"""Kind of an output that was scored when it was written, by its trial or by the trend, and not by uses."""
_ORDERS_A_ROUND = 1_000_000
"""`entered_order` is round * this + index of entry: unique over a run without carrying a counter."""


class HeldText(NamedTuple):
    """A text of the bank. An output may write several, and an entry is rewritten: only the two together name one."""

    entry_id: str
    """Entry that holds it."""
    generation_id: str
    """Output that wrote it."""


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


def _scored_at_once(
    row: Distillation, config: ExtractorObjective, free_means: Mapping[str, float]
) -> tuple[str, float] | None:
    """(kind, reward) of an output that is scored without a use; None for one that waits for uses, or is unscored."""
    if row.verdict == "malformed":
        return None if config.malformed_reward == "none" else ("malformed", float(config.malformed_reward))
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
    unpaid: Set[str] = frozenset(),
    repeats: Mapping[str, Sequence[HeldText]] | None = None,
    held: Set[HeldText] | None = None,
    answers: Sequence[AnswerReward] = (),
    scored: Mapping[str, float] | None = None,
    scored_kind: str = SCORED,
    tasks: Tasks | None = None,
) -> list[BufferItem]:
    """The buffer after this round's uses and outputs, oldest entry first.

    `uses` add themselves and their reward to the output that wrote the text, and to those that repeated it since;
    `distillations` are the outputs written this round (distill and merge). `origins` says for an output by generation
    id which (round, stage) wrote it; it is read for outputs that enter. `free_means` is `credit.free_means` of this
    round's episodes, for `return_reward: free_mean` (a `return` whose group has no free member stays unscored).
    `unpaid` are outputs whose uses train nobody but those that repeat their texts: they are of another run, or were
    scored at once. `scored` has what outputs of this round earned at once (by a trial, or by the trend): as one use of
    several (`scored_kind` used), or once and for all (:data:`SCORED`).
    `repeats` gives, for outputs of this round that wrote what the bank held already, those texts, each once.
    `held` are the texts of the bank after the round (None: unknown; others than those of the outputs in question may be
    left out): what has no use and no text there is dropped, or just ends where it was trained before. `answers` are
    what answers of this round's episodes earned. With `tasks` an output counts each task once (its own by verdicts
    alone), by the mean of the uses that it earns by there. New items enter in the order of first use, then in that of
    `distillations`, then in that of `answers`. Raises RecordDamaged for a used output without an origin.
    """
    items = _settled(previous)
    repeated_by: dict[HeldText, list[str]] = defaultdict(list)
    for item in items.values():
        for text in _repeated_texts(item):
            repeated_by[text].append(item.generation_id)
    entered = 0

    def enter(generation_id: str, kind: str, origin: tuple[int, str], repeated: Sequence[HeldText] = ()) -> BufferItem:
        nonlocal entered
        order = round * _ORDERS_A_ROUND + entered
        entered += 1
        return BufferItem(
            generation_id=generation_id, generation_round=origin[0], generation_stage=origin[1], kind=kind,
            entered_round=round, entered_order=order, uses=0, score_sum=0.0, train_count=0,
            last_trained_round=None, status="waiting", reason=None,
            repeats=[text.generation_id for text in repeated], repeated_entries=[text.entry_id for text in repeated],
        )  # fmt: skip

    earned = [
        (generation_id, use)
        for use in uses
        for generation_id in (use.generation_id, *repeated_by[HeldText(use.entry_id, use.generation_id)])
        if generation_id not in unpaid
    ]
    for generation_id, use in earned if tasks is None else one_per_task(earned, tasks):
        known = items.get(generation_id)
        if known is None:
            if generation_id not in origins:
                raise RecordDamaged(
                    f"experience {use.entry_id} was used, but nothing says which stage wrote {generation_id}",
                    expected="the bank's snapshot to name the output behind every text",
                    where=f"round {use.round}, episode {use.episode_id}",
                    next_step="run `crl verify` on the run",
                )
            item = enter(generation_id, "used", origins[generation_id])
        elif known.status == "trained":
            origin = (known.generation_round, known.generation_stage)
            fresh = enter(generation_id, known.kind, origin, _repeated_texts(known))
            item = replace(fresh, train_count=known.train_count, last_trained_round=known.last_trained_round)
        else:
            item = known
        items[generation_id] = replace(item, uses=item.uses + 1, score_sum=item.score_sum + use.reward)
    for row in distillations:
        origin = origins.get(row.generation_id, (row.round, row.kind))
        at_once = _scored_at_once(row, config, free_means)
        if at_once is not None:
            kind, reward = at_once
            items[row.generation_id] = replace(enter(row.generation_id, kind, origin), uses=1, score_sum=reward)
        elif scored and row.generation_id in scored:
            shared = () if scored_kind == SCORED else (repeats or {}).get(row.generation_id, ())
            item = enter(row.generation_id, scored_kind, origin, shared)
            items[row.generation_id] = replace(item, uses=1, score_sum=scored[row.generation_id])
        elif repeats and row.generation_id in repeats:
            items[row.generation_id] = enter(row.generation_id, "used", origin, repeats[row.generation_id])
    for answer in answers:
        item = enter(answer.generation_id, answer.kind, (round, "collect"))
        items[answer.generation_id] = replace(item, uses=1, score_sum=answer.reward)
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


def select_batches(
    buffer: Sequence[BufferItem], config: ExtractorObjective, *, round: int
) -> tuple[list[list[BufferItem]], list[BufferItem]]:
    """The batches of this round's updates, oldest first, and the buffer after them.

    As many batches of `config.batch` ripe items (:func:`ripe_items`) as there are, at most `config.max_batches`.

    A batch takes the oldest. Equal rewards have no advantage and train nothing, so where the oldest are all equal the
    last place goes to the oldest item with another reward; where there is none, nothing is taken and all keep waiting.

    The selected items are returned as they are **before** this training (eq. 7 counts earlier ones); in the buffer
    returned they have status `selected`, one more training and this round as the last. All others are unchanged.
    """
    ripe = ripe_items(buffer, config, round=round)
    batches: list[list[BufferItem]] = []
    while len(ripe) >= config.batch and len(batches) < config.max_batches:
        batch = ripe[: config.batch]
        if _mean_reward(batch[0]) == min(map(_mean_reward, batch)) == max(map(_mean_reward, batch)):
            other = next((item for item in ripe if _mean_reward(item) != _mean_reward(batch[0])), None)
            if other is None:
                break
            batch[-1] = other
        taken = {item.generation_id for item in batch}
        ripe = [item for item in ripe if item.generation_id not in taken]
        batches.append(batch)
    chosen = {item.generation_id for batch in batches for item in batch}
    after = [
        replace(item, status="selected", train_count=item.train_count + 1, last_trained_round=round)
        if item.generation_id in chosen
        else item
        for item in buffer
    ]
    return batches, after


def _mean_reward(item: BufferItem) -> float:
    return item.score_sum / item.uses


def oldest_wait(buffer: Iterable[BufferItem], *, round: int) -> int:
    """Rounds that the oldest scored item has waited."""
    return max((round - item.entered_round for item in scored_items(buffer)), default=0)


def buffer_metrics(
    buffer: Sequence[BufferItem], *, round: int, config: ExtractorObjective, trains: bool, stage: str = "credit"
) -> list[Metric]:
    """How full the buffer is, of what, and how long its oldest scored item has waited (rounds).

    Where the round trains the extractor (`trains`), what is scored and was not trained although it fills more than two
    batches will be trained ever later: an alarm.
    """
    waiting = scored_items(buffer)
    figures: dict[str, float] = {
        "buffer_waiting": len(waiting),
        "buffer_unused": sum(item.status == "waiting" and not item.uses for item in buffer),
        "buffer_selected": sum(item.status == "selected" for item in buffer),
        "buffer_dropped": sum(item.status == "dropped" for item in buffer),
    }
    at_once = [SCORED] if any(item.kind == SCORED for item in buffer) else []
    for kind in ("used", "malformed", "return", "answer", *at_once):
        figures[f"buffer_waiting_{kind}"] = sum(item.kind == kind for item in waiting)
    figures["buffer_oldest_wait"] = oldest_wait(buffer, round=round)
    alarms = {}
    if trains and len(waiting) > 2 * config.batch:
        alarms["buffer_waiting"] = (
            f"{len(waiting)} scored outputs wait for batches of {config.batch}, at most {config.max_batches} a round: "
            "raise extractor_objective.max_batches, unless all of their rewards are equal"
        )
    return [
        Metric(round=round, stage=stage, name=name, value=float(value), alarm=alarms.get(name))
        for name, value in figures.items()
    ]
