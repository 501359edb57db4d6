"""Token lists as scalar columns: how many values a row has, and how many of them break a rule.

Great Expectations takes pandas frames, where a list is an opaque object; counts keep the rules checkable and cheap.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

_LISTS = ("token_ids", "loss_mask", "logprobs")
_ROUNDING = 1e-4
"""A log-softmax may come out above 0 by rounding."""


def summarize(table: pa.Table) -> pa.Table:
    """The table with `token_ids`, `loss_mask` and `logprobs` replaced by counts; unchanged if it has none of them.

    Added columns, one value per row: `n_tokens`, `n_mask`, `n_logprobs` (lengths), `trained` (mask is 1), `bad_tokens`
    (negative ids), `bad_masks` (neither 0 nor 1), `nonfinite_logprobs`, `positive_logprobs`, `unmasked_logprobs`
    (not 0 where the mask is 0; 0 where the lengths differ, which is a breach of its own), `chosen` (tokens with
    choices).
    """
    if not set(_LISTS) <= set(table.column_names):
        return table
    tokens, n_tokens = _flat(table, "token_ids")
    mask, n_mask = _flat(table, "loss_mask")
    logprobs, n_logprobs = _flat(table, "logprobs")
    columns = {
        "n_tokens": n_tokens,
        "n_mask": n_mask,
        "n_logprobs": n_logprobs,
        "trained": _count(mask == 1, n_mask),
        "bad_tokens": _count(~(tokens >= 0), n_tokens),
        "bad_masks": _count((mask != 0) & (mask != 1), n_mask),
        "nonfinite_logprobs": _count(~np.isfinite(logprobs), n_logprobs),
        "positive_logprobs": _count(logprobs > _ROUNDING, n_logprobs),
    }
    if np.array_equal(n_mask, n_logprobs):
        columns["unmasked_logprobs"] = _count((mask == 0) & (logprobs != 0), n_mask)
    else:
        columns["unmasked_logprobs"] = np.zeros_like(n_mask)
    columns["chosen"] = _flat_lengths(table, "choices")
    rest = table.drop_columns([*_LISTS, "choices"])
    for name, values in columns.items():
        rest = rest.append_column(name, pa.array(values))
    return rest


def _flat(table: pa.Table, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """All values of a list column in row order, and the length of each row's list. A null value becomes NaN."""
    column, lengths = table.column(name).combine_chunks(), _flat_lengths(table, name)
    values = column.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    return values, lengths


def _flat_lengths(table: pa.Table, name: str) -> NDArray[np.int64]:
    """The length of each row's list."""
    lengths = table.column(name).combine_chunks().value_lengths().fill_null(0)
    counted: NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return counted


def _count(flags: NDArray[np.bool_], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many flags are set in each row."""
    rows = np.repeat(np.arange(len(lengths)), lengths)
    return np.bincount(rows[flags], minlength=len(lengths)).astype(np.int64)
