"""Which row a seed plays, and which rows are held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from crl.envs.levels import HELD_OUT_SHARE
from crl.errors import BadInput
from crl.worlds.swe.rows import Row

_TRAINING = ("train", "training")


@dataclass(frozen=True, slots=True)
class Tasks:
    """The rows of training and those that are held out, each in its order.

    Seed s plays row s modulo their number; held-out seeds count from `held_out_from` on. So as many held-out seeds as
    there are held-out rows play each of them once.
    """

    training: Sequence[Row]
    evaluation: Sequence[Row]
    held_out_from: int | None

    def of(self, seed: int) -> Row:
        """The row of a seed."""
        if self.held_out_from is not None and seed >= self.held_out_from:
            return self.evaluation[(seed - self.held_out_from) % len(self.evaluation)]
        return self.training[seed % len(self.training)]


def split(rows: Sequence[Row], held_out: Sequence[Row] | None, held_out_from: int | None, *, where: str) -> Tasks:
    """The tasks of rows.

    Args:
        held_out: rows that are held out, from a file of their own; None: of `rows`, those whose column `split` is not
            train; where not all have that column, a quarter of them by a hash of their names.
        held_out_from: None: all rows are of training.

    Raises BadInput where a side has no row.
    """
    if held_out_from is None:
        return Tasks(rows, (), None)
    if held_out is None:
        held_out = _held_out(rows)
    names = {row.instance_id for row in held_out}
    training = [row for row in rows if row.instance_id not in names]
    if not training or not held_out:
        raise BadInput(
            f"of {len(rows)} rows {len(names)} are held out",
            expected="rows on both sides: to train on, and to evaluate with",
            where=where,
            next_step="add rows, name a file of held_out_rows, or set held_out_from: null, which holds none out",
        )
    return Tasks(training, tuple(held_out), held_out_from)


def _held_out(rows: Sequence[Row]) -> list[Row]:
    splits = [(row.model_extra or {}).get("split") for row in rows]
    if all(isinstance(each, str) for each in splits):
        return [row for row, name in zip(rows, splits, strict=True) if name not in _TRAINING]
    ordered = sorted(rows, key=lambda row: hashlib.sha256(row.instance_id.encode("utf-8", "replace")).digest())
    names = {row.instance_id for row in ordered[: max(1, int(len(rows) * HELD_OUT_SHARE))]}
    return [row for row in rows if row.instance_id in names]
