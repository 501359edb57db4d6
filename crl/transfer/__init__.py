"""A bank leaves a run and becomes the beginning of another experiment: export (`gather`, then `folder` or `skills`),
import (`take`).

Here is how an export is written. Light: the command line imports this to know its options.
"""

from __future__ import annotations

from typing import Literal, get_args

PROVENANCE, CARD = "provenance.json", "README.md"
Format = Literal["parquet", "jsonl", "huggingface"]
"""How the tables are written."""
SKILL_FORMAT = "SKILL.md"
"""`format` in the provenance of what was read of skills."""
FORMATS: tuple[Format, ...] = get_args(Format)


def file_of(table: str, format: Format) -> str:
    """Path of a table inside the folder."""
    if format == "huggingface":
        return f"{'data' if table == 'entries' else table}/train-00000-of-00001.parquet"
    return f"{table}.{format}"
