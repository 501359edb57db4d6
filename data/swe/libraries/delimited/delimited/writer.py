"""From rows to text that reads back as the same rows."""

from collections.abc import Iterable, Sequence

from delimited.dialect import Dialect

_DEFAULT = Dialect()


def write_rows(rows: Iterable[Sequence[object]], dialect: Dialect = _DEFAULT, end: str = "\n") -> str:
    """One line per row. None is an empty field; a field is quoted only where it has to be."""
    lines = []
    for row in rows:
        fields = [_field(value, dialect) for value in row]
        if len(fields) == 1 and not fields[0]:
            fields = [dialect.quote * 2]
        if fields and dialect.comment and fields[0].startswith(dialect.comment):
            fields[0] = _quoted(fields[0], dialect)
        lines.append(dialect.delimiter.join(fields) + end)
    return "".join(lines)


def _field(value: object, dialect: Dialect) -> str:
    text = "" if value is None else str(value)
    special = dialect.delimiter in text or "\n" in text or "\r" in text or text.startswith(dialect.quote)
    if special or (dialect.strip and (text != text.strip(" ") or text[1:2] == dialect.quote)):
        return _quoted(text, dialect)
    return text


def _quoted(text: str, dialect: Dialect) -> str:
    quote = dialect.quote
    return quote + text.replace(quote, quote * 2) + quote
