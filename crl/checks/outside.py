"""The one door for rows that come in from outside: a checkpoint of Great Expectations, before they are taken.

Exported banks, recorded games, and the data sets that environments play with: whoever reads them gives the rows as a
table of a row type, whose rules are the suite. Readers see to the form of single values; here are the rules of rows and
tables.
"""

from __future__ import annotations

from crl.checks.stage import numbered
from crl.checks.suites import expectations_of
from crl.errors import BadInput
from crl.records import OutsideRows


def require_sound(brought: OutsideRows) -> None:
    """Raise BadInput, with every rule that is broken and the first rows, where rows cannot be taken."""
    from crl.checks.native import failures, validate

    row_type, rules = brought.row_type, brought.rules or brought.row_type.rules
    name, key = row_type.table, list(rules.key)
    tables = numbered({row_type: brought.rows})
    result = validate(name, key, expectations_of(row_type, {}, rules), tables)
    if not result.success:
        raise BadInput(
            f"{brought.file} cannot be taken:\n" + "\n".join(failures(name, key, result.results, tables[name])),
            expected="rows of which every rule holds, counted from row 0",
            where=brought.file,
            next_step=brought.next_step,
        )
