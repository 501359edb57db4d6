"""What can be wrong with a file of settings."""


class IniError(ValueError):
    """`line` counts from 1; it is None where the mistake is in no single line."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message if line is None else f"line {line}: {message}")
        self.line = line
