"""What a suite of rules and a rule between tables are, and the SQL predicates that many of them share."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Suite:
    """The rules of one record type."""

    key: tuple[str, ...]
    """Columns that together are unique; they also name a row in messages."""
    sets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Allowed values by column."""
    ranges: dict[str, tuple[float | None, float | None]] = field(default_factory=dict)
    """Smallest and largest value by column."""
    rows: dict[str, str] = field(default_factory=dict)
    """SQL predicate by the sentence it stands for."""


@dataclass(frozen=True)
class CrossRule:
    """One rule between tables; `violations` selects (row, id) from them, which have their rows numbered in `row`."""

    rule: str
    tables: tuple[str, ...]
    """The first is the one whose rows are named."""
    violations: str


def sha256(column: str) -> str:
    """The column is a SHA-256 in hex."""
    return f"regexp_full_match({column}, '[0-9a-f]{{64}}')"


def together(*columns: str) -> str:
    """All of the columns are null, or none is."""
    first, *others = columns
    return " AND ".join(f"({first} IS NULL) = ({other} IS NULL)" for other in others)


def unique(*columns: str) -> str:
    """No two rows have the same values in the columns."""
    return f"count(*) OVER (PARTITION BY {', '.join(columns)}) = 1"
