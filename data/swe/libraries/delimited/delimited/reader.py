"""From text to rows: one pass over the characters."""

from delimited.dialect import DelimitedError, Dialect

_DEFAULT = Dialect()


def read_rows(text: str, dialect: Dialect = _DEFAULT) -> list[list[str]]:
    """All rows of a text. Raises DelimitedError where a quoted field does not end, or goes on behind its quote."""
    return _Reader(text, dialect).rows()


def read_records(text: str, dialect: Dialect = _DEFAULT) -> list[dict[str, str]]:
    """Rows as dictionaries by the names in the first row, which have to differ. Short rows are filled with ""."""
    rows = read_rows(text, dialect)
    if not rows:
        return []
    names = rows[0]
    if len(set(names)) != len(names):
        raise DelimitedError("a name comes twice in the header", 1)
    records = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) > len(names):
            raise DelimitedError(f"{len(row)} fields, but {len(names)} names", number)
        filled = row + [""] * (len(names) - len(row))
        records.append(dict(zip(names, filled, strict=True)))
    return records


class _Reader:
    def __init__(self, text: str, dialect: Dialect) -> None:
        self.text = text
        self.dialect = dialect
        self.at = 0
        self.found: list[list[str]] = []

    def rows(self) -> list[list[str]]:
        while self.at < len(self.text):
            if self._skipped():
                continue
            self.found.append(self._row())
        return self.found

    def _skipped(self) -> bool:
        """Pass an empty line or a comment; whether there was one."""
        comment = self.dialect.comment
        if comment and self.text.startswith(comment, self.at):
            while self.at < len(self.text) and self.text[self.at] not in "\r\n":
                self.at += 1
            self._line_end()
            return True
        return self._line_end()

    def _row(self) -> list[str]:
        fields = [self._field()]
        while self.at < len(self.text) and self.text[self.at] == self.dialect.delimiter:
            self.at += 1
            fields.append(self._field())
        self._line_end()
        return fields

    def _field(self) -> str:
        if self.dialect.strip:
            self._blanks()
        if self.at < len(self.text) and self.text[self.at] == self.dialect.quote:
            return self._quoted()
        start = self.at
        while self.at < len(self.text) and self.text[self.at] not in self.dialect.delimiter + "\r\n":
            self.at += 1
        field = self.text[start : self.at]
        return field.strip(" ") if self.dialect.strip else field

    def _quoted(self) -> str:
        """The field behind an opening quote; a doubled quote stands for one."""
        parts, quote, row = [], self.dialect.quote, len(self.found) + 1
        self.at += 1
        while True:
            end = self.text.find(quote, self.at)
            if end < 0:
                raise DelimitedError("a quoted field does not end", row)
            parts.append(self.text[self.at : end])
            self.at = end + 1
            if self.text[self.at : self.at + 1] != quote:
                break
            parts.append(quote)
            self.at += 1
        if self.dialect.strip:
            self._blanks()
        if self.at < len(self.text) and self.text[self.at] not in self.dialect.delimiter + "\r\n":
            raise DelimitedError("text behind the closing quote", row)
        return "".join(parts)

    def _blanks(self) -> None:
        while self.at < len(self.text) and self.text[self.at] == " ":
            self.at += 1

    def _line_end(self) -> bool:
        """Pass one line end; `\r\n` is one."""
        if self.text.startswith("\r\n", self.at):
            self.at += 2
            return True
        if self.at < len(self.text) and self.text[self.at] in "\r\n":
            self.at += 1
            return True
        return False
