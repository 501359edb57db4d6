"""What the bank holds and why: snapshots as rows, the history of one experience as a tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.errors import BadInput
from crl.report.views import reading

if TYPE_CHECKING:
    import duckdb
    from rich.tree import Tree

_ANCESTORS = 8
"""Generations of merged parents that the tree follows; deeper ones are named only."""


@dataclass(frozen=True, slots=True)
class ShownEntry:
    """One entry of a snapshot, with its usefulness so far."""

    entry_id: str
    family: str
    version: int
    created_round: int
    updated_round: int
    text: str
    retrieved: int
    """Times chosen to guide an episode, up to that round."""
    uses: int
    mean_outcome: float | None
    """Mean of +1 / −1 over the uses; None before the first."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The bank after a round."""

    round: int
    entries: list[ShownEntry]


def snapshot(run_path: Path, round_number: int | None = None, family: str | None = None) -> Snapshot:
    """The bank after a round (the newest committed one by default), oldest entries first.

    Raises BadInput for a round without a bank and for a family the run does not have.
    """
    with reading(run_path) as connection:
        rounds = _column(connection, "SELECT DISTINCT round FROM stages WHERE stage IN ('consolidate', 'initialise')")
        if not rounds:
            raise BadInput(
                f"{run_path} has no bank yet",
                expected="a committed `initialise` or `consolidate` stage",
                next_step=f"`crl status {run_path}` says what is missing",
            )
        chosen = max(rounds) if round_number is None else round_number
        if chosen not in rounds:
            raise BadInput(
                f"round {chosen} of {run_path} has no bank",
                expected=f"a round from {min(rounds)} to {max(rounds)}",
                next_step="leave --round out for the newest one",
            )
        families = _column(connection, "SELECT DISTINCT family FROM tasks UNION SELECT DISTINCT family FROM bank")
        if family is not None and family not in families:
            raise BadInput(
                f"{run_path} has no task family {family!r}",
                expected=f"one of {', '.join(sorted(families)) or '(none played yet)'}",
            )
        rows = connection.execute(_SNAPSHOT, {"round": chosen, "family": family}).fetchall()
    return Snapshot(chosen, [ShownEntry(*row) for row in rows])


_SNAPSHOT = """
SELECT
    bank.entry_id, bank.family, bank.version, bank.created_round, bank.updated_round, coalesce(bank.text, ''),
    coalesce(retrieved.count, 0), coalesce(score.uses, 0), score.mean_outcome
FROM bank_text AS bank
LEFT JOIN retrieval_counts AS retrieved ON retrieved.entry_id = bank.entry_id AND retrieved.round = $round
LEFT JOIN entry_scores AS score ON score.entry_id = bank.entry_id AND score.round = $round
WHERE bank.round = $round AND ($family IS NULL OR bank.family = $family)
ORDER BY bank."order", bank.entry_id
"""


def why(run_path: Path, entry_id: str) -> list[dict[str, Any]]:
    """The rows of the view `lineage` for one experience: one a use, by version.

    Raises BadInput for an entry that never was in the bank, naming close ones.
    """
    with reading(run_path) as connection:
        rows = _lineage(connection, entry_id)
        if not rows:
            raise _unknown(connection, run_path, entry_id)
    return rows


def why_tree(run_path: Path, entry_id: str) -> Tree:
    """The history of one experience for a terminal: text, origin, writer, parents, uses and their outcome.

    Raises as :func:`why`.
    """
    from rich.tree import Tree

    with reading(run_path) as connection:
        rows = _lineage(connection, entry_id)
        if not rows:
            raise _unknown(connection, run_path, entry_id)
        tree = Tree(_plain(f"experience {entry_id} (family {rows[0]['family']}): {_fate(connection, entry_id)}"))
        _grow(tree, connection, rows, {entry_id}, depth=0)
    return tree


def _grow(
    tree: Tree, connection: duckdb.DuckDBPyConnection, rows: list[dict[str, Any]], seen: set[str], depth: int
) -> None:
    for _, listed in groupby(rows, key=lambda row: row["version"]):
        uses = list(listed)
        first = uses[0]
        branch = tree.add(
            _plain(f"version {first['version']}, {first['kind']} in round {first['written_round']}: {first['text']}")
        )
        _origin(branch, first)
        for parent in first["parents"] or []:
            if parent in seen:  # an update names the entry itself: its earlier versions stand above
                continue
            ancestry = _lineage(connection, parent)
            node = branch.add(_plain(f"from {parent}" + ("" if ancestry else ": nothing is known of it")))
            if ancestry and depth < _ANCESTORS:
                _grow(node, connection, ancestry, seen | {parent}, depth + 1)
        _uses(branch, [use for use in uses if use["used_in"] is not None])


def _origin(branch: Tree, row: dict[str, Any]) -> None:
    sources = [f"{each['episode_id']} ({_outcome(each['success'])})" for each in row["source_episodes"] or []]
    branch.add(_plain(f"made from {', '.join(sources) or 'no episode (a merge: see what it is from)'}"))
    if row["generation_id"] is None:
        return
    updates = row["extractor_updates"]
    writer = branch.add(
        _plain(
            f"written by extractor {row['extractor_checkpoint'] or 'of unknown weights'}"
            + ("" if updates is None else f" ({updates} updates)")
            + f", weights {str(row['extractor_digest'])[:12]}, output {row['generation_id']}"
        )
    )
    if row["prompt"] is not None:
        writer.add(_plain(f"prompt: {_short(row['prompt'])}"))
        writer.add(_plain(f"output: {_short(row['output'])}"))


def _uses(branch: Tree, uses: list[dict[str, Any]]) -> None:
    if not uses:
        branch.add("never used")
        return
    outcomes = [use["outcome"] for use in uses if use["outcome"] is not None]
    differences = [use["guided_minus_free"] for use in uses if use["guided_minus_free"] is not None]
    credit = f", credit {sum(outcomes) / len(outcomes):+.2f}" if outcomes else ", not credited yet"
    if differences:
        credit += f", guided minus free {sum(differences) / len(differences):+.2f}"
    node = branch.add(_plain(f"used in {len(uses)} episodes{credit}"))
    for use in uses:
        parts = [f"{use['used_in']}: {_outcome(use['used_success'])}", f"similarity {use['used_similarity']:.2f}"]
        if use["guided_minus_free"] is not None:
            parts.append(f"guided minus free {use['guided_minus_free']:+.2f} (free mean {use['free_mean']:+.2f})")
        node.add(_plain(", ".join(parts)))


def _fate(connection: duckdb.DuckDBPyConnection, entry_id: str) -> str:
    events = connection.execute(
        "SELECT kind, round, reason FROM bank_events WHERE entry_id = $id AND kind IN ('drop', 'evict') ORDER BY round",
        {"id": entry_id},
    ).fetchall()
    if events:
        kind, number, reason = events[-1]
        return f"left the bank in round {number} ({kind}{': ' + reason if reason else ''})"
    newest = connection.execute("SELECT max(round) FROM stages WHERE stage = 'consolidate'").fetchall()[0][0]
    present = connection.execute(
        "SELECT count(*) FROM bank WHERE entry_id = $id AND round = $round", {"id": entry_id, "round": newest}
    ).fetchall()[0][0]
    return f"in the bank after round {newest}" if present else f"not in the bank after round {newest} (merged)"


def _lineage(connection: duckdb.DuckDBPyConnection, entry_id: str) -> list[dict[str, Any]]:
    result = connection.execute("SELECT * FROM lineage WHERE entry_id = $id", {"id": entry_id})
    names = [column[0] for column in result.description or ()]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]


def _unknown(connection: duckdb.DuckDBPyConnection, run_path: Path, entry_id: str) -> BadInput:
    import difflib

    refused = connection.execute(
        "SELECT round, reason FROM bank_events WHERE entry_id = $id AND kind = 'rejected' ORDER BY round",
        {"id": entry_id},
    ).fetchall()
    if refused:
        return BadInput(
            f"experience {entry_id} never came into the bank of {run_path}: {refused[0][1]} (round {refused[0][0]})",
            next_step=f"`crl bank diff {run_path} {refused[0][0]}` shows what it would have been",
        )
    known = sorted(
        _column(connection, "SELECT entry_id FROM bank_events WHERE entry_id IS NOT NULL AND kind <> 'rejected'")
    )
    close = difflib.get_close_matches(entry_id, known, n=3) or known[:3]
    return BadInput(
        f"no experience {entry_id!r} was ever in the bank of {run_path}",
        expected=f"an entry id, such as {', '.join(close)}" if close else "the bank has had no entry so far",
        next_step=f"`crl bank show {run_path}` lists them",
    )


def _column(connection: duckdb.DuckDBPyConnection, sql: str) -> set[Any]:
    return {row[0] for row in connection.execute(sql).fetchall()}


def _outcome(success: bool | None) -> str:
    return {True: "won", False: "lost", None: "outcome unknown"}[success]


def _short(text: str, limit: int = 200) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else f"…{joined[-limit:]}"


def _plain(text: str) -> Any:
    """Text in which brackets are not markup: model outputs stand in it."""
    from rich.text import Text

    return Text(text)
