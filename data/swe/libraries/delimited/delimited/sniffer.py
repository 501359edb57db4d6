"""Guess the delimiter of a text."""

from delimited.dialect import DelimitedError, Dialect
from delimited.reader import read_rows

CANDIDATES = ",;\t|"
_ROWS = 20


def sniff(text: str, candidates: str = CANDIDATES) -> Dialect:
    """The dialect whose delimiter splits the first rows into equally many fields, and most of them.

    Rows of one field say nothing. Of two delimiters that do equally well, the earlier candidate is taken. Raises
    ValueError where none does.
    """
    best, most = None, 1
    for delimiter in candidates:
        dialect = Dialect(delimiter=delimiter)
        try:
            rows = read_rows(text, dialect)[:_ROWS]
        except DelimitedError:
            continue
        sizes = {len(row) for row in rows}
        if len(sizes) == 1 and max(sizes) > most:
            best, most = dialect, max(sizes)
    if best is None:
        raise ValueError("no delimiter splits the rows into equally many fields")
    return best
