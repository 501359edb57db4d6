"""How rows are written."""

from dataclasses import dataclass


class DelimitedError(ValueError):
    """Text that is not of the form. `row` counts from 1."""

    def __init__(self, message: str, row: int) -> None:
        super().__init__(f"row {row}: {message}")
        self.row = row


@dataclass(frozen=True)
class Dialect:
    """`strip`: blanks around fields without quotes are dropped. `comment`: lines that begin with it are skipped."""

    delimiter: str = ","
    quote: str = '"'
    strip: bool = False
    comment: str | None = None

    def __post_init__(self) -> None:
        if len(self.delimiter) != 1 or len(self.quote) != 1:
            raise ValueError("delimiter and quote are one character each")
        if self.delimiter == self.quote or self.delimiter in "\r\n" or self.quote in "\r\n":
            raise ValueError("delimiter and quote differ from each other and from line ends")
