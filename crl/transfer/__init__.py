"""A bank leaves a run and becomes the beginning of another experiment: export (`gather`, `folder`), import (`take`).

Here is how an export is written. Light: the command line imports this to know its options.
"""

from __future__ import annotations

from enum import StrEnum

PROVENANCE, CARD = "provenance.json", "README.md"


class Format(StrEnum):
    """How the tables are written."""

    parquet = "parquet"
    jsonl = "jsonl"
    huggingface = "huggingface"


def file_of(table: str, format: Format) -> str:
    """Path of a table inside the folder."""
    if format is Format.huggingface:
        return f"{'data' if table == 'entries' else table}/train-00000-of-00001.parquet"
    return f"{table}.{format.value}"
