"""The public Python interface to a run: what `crl.open` returns (docs/notebook.md).

Everything tabular is a DuckDB relation: the rows are read when they are asked for (`.df()`, `.to_arrow_table()`,
`.pl()`, `.fetchall()`), and a relation narrows further without reading (`.filter("turns > 5")`, `.order("round")`).
Each relation has a read-only session of its own that sees the run as it was when the relation was made and opens no
file outside it, so two relations of one run are joined in SQL and not with each other. Errors are those of the command
line (`crl.errors`): BadInput for a question that has no answer, RecordDamaged for a file that cannot be read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from duckdb import ColumnExpression, ConstantExpression, DuckDBPyRelation, Expression

from crl.report import views
from crl.run.directory import RunDirectory, round_numbers
from crl.text.unicode import escaped

if TYPE_CHECKING:
    from crl.config import Method
    from crl.report.story import Event, Story

_BANK = "SELECT * EXCLUDE guided_minus_free FROM bank_uses WHERE round = {round} ORDER BY entry_id"
_CURVES = """
SELECT round, condition, stage = 'evaluate' AS held_out, won, games, success, low, high, broken
FROM success_by_condition WHERE stage IN ('collect', 'evaluate') ORDER BY round, held_out, condition
"""


class Run:
    """One run, for reading. Made by `crl.open`; it costs nothing and holds nothing open."""

    def __init__(self, path: Path) -> None:
        self.path = path
        """The run directory."""

    def __repr__(self) -> str:
        rounds = self.rounds
        held = f"rounds {rounds[0]} to {rounds[-1]}" if rounds else "no round yet"
        return f"<Run {escaped(str(self.path))}: {held}>"

    @property
    def rounds(self) -> list[int]:
        """Rounds with at least one complete stage, as of now; round 0 prepares."""
        return round_numbers(self.path)

    @property
    def method(self) -> Method:
        """The frozen method of the experiment. Raises RecordDamaged where it was changed or is gone."""
        return RunDirectory.open(self.path).method

    def sql(self, query: str, /, *, until: int | None = None, **parameters: Any) -> DuckDBPyRelation:
        """One SELECT over the views of the run (docs/sql.md; `run.sql("SHOW TABLES")` lists them).

        Args:
            query: one SELECT; `$name` stands for a parameter.
            until: everything as it was after this round; default the run as it is now.
            parameters: values by name. A query with parameters runs at once.

        Raises BadInput for anything that is not one SELECT, for SQL that fails and for a round that the run does not
        have; RecordDamaged.
        """
        return views.relation(self.path, query, parameters or None, until=until)

    def bank(self, round: int | None = None, *, family: str | None = None) -> DuckDBPyRelation:
        """The bank after a round (default the newest): one row per entry, with its text and its usefulness so far.

        Columns are those of the view `bank_text`, then `retrieved` (times chosen to guide an episode, in any words),
        `uses` (episodes credited that its text guided) and `mean_outcome` (mean of +1 / −1 over these; null without
        any). Raises BadInput for a round without a bank, RecordDamaged.
        """
        asked = "latest_round()" if round is None else str(int(round))
        # Asked at once: in a relation, a round without a bank would be an error of DuckDB when its rows are read.
        _, [(number, _)] = views.query(self.path, f"SELECT {asked}, has_bank({asked})")
        return _where(self.sql(_BANK.format(round=number)), family=family)

    def episodes(
        self,
        round: int | None = None,
        *,
        family: str | None = None,
        guided: bool | None = None,
        success: bool | None = None,
    ) -> DuckDBPyRelation:
        """Recorded episodes: one row each, columns as in the view `episodes`; `stage` says what each was played for.

        A filter that is None selects everything. Raises RecordDamaged.
        """
        played = self.sql("SELECT * FROM episodes ORDER BY round, episode_id")
        return _where(played, round=round, family=family, guided=guided, success=success)

    def curves(self) -> DuckDBPyRelation:
        """Success by round and condition, with its 95 % interval (Wilson): `round`, `condition`, `held_out`, `won`,
        `games`, `success`, `low`, `high`.

        Conditions are guided and free in training; with_bank, without_bank and random on held-out seeds. Raises
        RecordDamaged.
        """
        return self.sql(_CURVES)

    def entry(self, entry_id: str) -> Entry:
        """One experience by its id, as `bank()` shows it. Whether there is one is known when it is asked something."""
        return Entry(self.path, entry_id)


@dataclass(frozen=True, slots=True)
class Entry:
    """One experience of a run."""

    path: Path
    entry_id: str

    def story(self, until: int | None = None) -> Story:
        """Every text it had, who wrote it from which episodes, where it was used, how it ended.

        As it was after round `until`; default now. Raises BadInput for an id that the bank did not have by then,
        naming close ones, and for a round without a bank; RecordDamaged.
        """
        from crl.report.why import why

        return why(self.path, self.entry_id, until=until)

    def history(self, until: int | None = None) -> tuple[Event, ...]:
        """What happened to it, the oldest first. Raises as :meth:`story`."""
        return self.story(until).events


def _where(relation: DuckDBPyRelation, **wanted: str | int | None) -> DuckDBPyRelation:
    """The rows whose columns have these values; a filter that is None selects everything."""
    for column, value in wanted.items():
        if value is not None:
            condition: Expression = ColumnExpression(column) == ConstantExpression(value)
            relation = relation.filter(condition)
    return relation
