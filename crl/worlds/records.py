"""Records of a person's data set, each with its place for messages: JSON lines, JSON, CSV, Parquet, Arrow, or a folder.

A folder is what `datasets.save_to_disk` wrote (of one with splits, the split that is named), or holds files of the
other kinds, which are read in the order of their names. `refuse(found, expected, where)` makes the error, as in
`json_files.py`, which also reads JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from crl.config.json_text import read_json
from crl.paths import short
from crl.worlds import json_files
from crl.worlds.json_files import Refuse, reason

_LINES, _ARROW = (".jsonl", ".ndjson"), ".arrow"
KINDS = (*_LINES, ".json", ".csv", ".parquet", _ARROW)
"""Endings of the files that can be read."""


def records(path: Path, refuse: Refuse, *, split: str | None = None, broken: bool = False) -> Iterator[tuple[str, Any]]:
    """Each record of a file or folder, and where it is. Raises what `refuse` makes; with `broken` a line that is no
    JSON is that error in place of its record."""
    for file in [path] if path.is_file() else _files(path, refuse, split):
        try:
            yield from _records_of(file, refuse, broken)
        except (OSError, UnicodeDecodeError, RecursionError) as error:
            raise refuse(reason(error), "a file of rows", str(file)) from None


def _records_of(file: Path, refuse: Refuse, broken: bool) -> Iterator[tuple[str, Any]]:
    kind = file.suffix.lower()
    if kind in (".parquet", _ARROW, ".csv"):
        yield from _table(file, refuse)
    elif broken and (kind in _LINES or (kind == ".json" and _is_lines(file))):
        yield from _lines(file, refuse)
    elif kind in KINDS:
        yield from ((where, record) for _, where, record in json_files.records(file, refuse, of="rows"))
    else:
        raise refuse(f"{short(file.name)} is of no known kind", f"a name that ends in {', '.join(KINDS)}", str(file))


def splits_of(folder: Path) -> list[str]:
    """Splits of a folder that `datasets` wrote; none where it has none."""
    there = (folder / "dataset_dict.json").is_file()
    return sorted(each.name for each in folder.iterdir() if each.is_dir()) if there else []


def _files(folder: Path, refuse: Refuse, split: str | None) -> list[Path]:
    if splits := splits_of(folder):
        if split not in splits:
            found = f"the data set at {short(folder)} has no split {short(str(split))}"
            raise refuse(found, f"one of them: {', '.join(splits)}", str(folder))
        folder = folder / split
    if (folder / "state.json").is_file():
        return [folder / name for name in _arrow_names(folder / "state.json", refuse)]
    found_files = sorted(each for each in folder.iterdir() if each.suffix.lower() in KINDS and each.is_file())
    if not found_files:
        raise refuse("the folder holds no file of rows", f"files that end in {', '.join(KINDS)}", str(folder))
    return found_files


def _arrow_names(state: Path, refuse: Refuse) -> list[str]:
    """The arrow files of a data set folder, in their order."""
    try:
        return [str(each["filename"]) for each in json.loads(state.read_text(encoding="utf-8"))["_data_files"]]
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise refuse(reason(error), "the list `_data_files` of datasets.save_to_disk", str(state)) from None


def _is_lines(file: Path) -> bool:
    with file.open(encoding="utf-8-sig") as lines:
        return not next(filter(str.strip, lines), "[").lstrip().startswith("[")


def _lines(file: Path, refuse: Refuse) -> Iterator[tuple[str, Any]]:
    """The record of each line, or what `refuse` makes of one that is none."""
    with file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            where = f"{file}, line {number}"
            try:
                yield where, read_json(line)
            except (ValueError, RecursionError) as error:
                yield where, refuse(f"it is no JSON: {error}", "one JSON object per line", where)


def _table(file: Path, refuse: Refuse) -> Iterator[tuple[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if file.suffix.lower() == ".parquet":
            table = pq.read_table(file)
        elif file.suffix.lower() == ".csv":
            import pandas as pd

            table = pa.Table.from_pandas(pd.read_csv(file), preserve_index=False)  # as `datasets` does
        else:
            with pa.memory_map(str(file)) as source:
                table = pa.ipc.open_stream(source).read_all()
    except (pa.ArrowException, ValueError, FileNotFoundError) as error:
        raise refuse(reason(error), "CSV, parquet, or an arrow stream of datasets.save_to_disk", str(file)) from None
    yield from ((f"{file}, row {number}", record) for number, record in enumerate(table.to_pylist()))
