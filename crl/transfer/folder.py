"""An exported bank as a folder: written whole or not at all, and read back only if it is what was written.

    parquet        entries.parquet, lineage.parquet, uses.parquet
    jsonl          entries.jsonl, lineage.jsonl, uses.jsonl
    huggingface    data/train-00000-of-00001.parquet, lineage/…, uses/…, README.md (a dataset card with one
                   configuration a table, so that `datasets.load_dataset(folder)` reads the entries)

and `provenance.json` in each: where the bank comes from, and the SHA-256 of every table.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from crl.checks.outside import require_sound
from crl.errors import BadInput, OtherFormat
from crl.records import RECORD_FORMAT, OutsideRows, Row, Rules, schema_of
from crl.report.markdown import as_text
from crl.run.files import sha256_file, whole_folder
from crl.run.imports import EMBEDDING
from crl.transfer import CARD, FORMATS, PROVENANCE, Format, file_of
from crl.transfer.gather import FORMAT, TABLES, ExportedEntry, Gathered, entries_schema
from crl.transfer.schema import (
    EXPORT_AGAIN,
    check_bank,
    check_columns,
    check_no_nulls,
    check_provenance,
    check_table,
    refused,
    strict_json,
)

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))
_ROWS = 256
"""Rows of a table that are objects in memory at once while it is checked."""


def write_folder(bank: Gathered, target: Path, format: Format) -> dict[str, Any]:
    """Write an export; returns its provenance. Raises BadInput where the target exists, DiskFull."""
    files = {}
    with whole_folder(target) as scratch:
        for name in TABLES:
            path = scratch / file_of(name, format)
            path.parent.mkdir(parents=True, exist_ok=True)
            _write(bank.tables[name], path)
            files[file_of(name, format)] = {"sha256": sha256_file(path), "rows": bank.tables[name].num_rows}
        provenance = {**bank.provenance, "files": files}
        text = json.dumps(provenance, indent=1, sort_keys=True, ensure_ascii=False)
        (scratch / PROVENANCE).write_text(text + "\n", encoding="utf-8")
        if format == "huggingface":
            card = dataset_card(bank.tables, provenance, {name: file_of(name, format) for name in TABLES})
            (scratch / CARD).write_text(card, encoding="utf-8")
    return provenance


def is_export(path: Path) -> bool:
    """Whether a folder looks like an exported bank."""
    return (path / PROVENANCE).is_file()


def read_folder(path: Path) -> Gathered:
    """An exported bank, checked from end to end. Raises BadInput for whatever `crl bank export` does not write."""
    provenance = _provenance(path)
    formats = [each for each in FORMATS if set(provenance["files"]) == {file_of(name, each) for name in TABLES}]
    if not formats:
        raise _no_export(path, f"{PROVENANCE} names {', '.join(sorted(provenance['files'])) or 'no files'}")
    tables = {}
    paths = {name: path / file_of(name, formats[0]) for name in TABLES}
    for name, file in paths.items():
        relative = file_of(name, formats[0])
        expected = provenance["files"][relative]["sha256"]
        dimension = provenance["embedder"]["dimension"]
        schema = entries_schema(dimension) if name == "entries" else schema_of(TABLES[name])
        try:
            found = sha256_file(file) if file.is_file() else "no such file"
        except OSError as error:
            raise refused(file, f"it cannot be read: {error}") from None
        if found != expected:
            raise BadInput(
                f"{relative} of the exported bank is not what was written: {found}",
                expected=expected,
                where=str(file),
                next_step="export the bank again",
            )
        tables[name] = _read(file, name, schema)
    check_bank(paths, tables, provenance)
    for name, row_type in TABLES.items():
        rows = tables[name].select(schema_of(row_type).names)  # without the vectors
        require_sound(OutsideRows(row_type, rows, str(paths[name]), EXPORT_AGAIN, _rules(row_type, provenance)))
    return Gathered(tables, {name: value for name, value in provenance.items() if name != "files"})


def _rules(row_type: type[Row], provenance: Mapping[str, Any]) -> Rules:
    """Of the entries, also what `provenance.json` says of them."""
    rules = row_type.rules
    if row_type is not ExportedEntry:
        return rules
    limits = {"updated_round": (0, provenance["round"])}
    return dataclasses.replace(rules, sets={"family": tuple(provenance["families"])}, ranges=limits)


def _write(table: pa.Table, path: Path) -> None:
    if path.suffix == ".parquet":
        # Vectors have no repeated values: a dictionary of them would only take room.
        others = [name for name in table.column_names if name != EMBEDDING]
        pq.write_table(table, path, compression="zstd", use_dictionary=others)
        return
    with path.open("w", encoding="utf-8") as file:
        for batch in table.to_batches(max_chunksize=1024):
            for row in batch.to_pylist():
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _read(path: Path, name: str, schema: pa.Schema) -> pa.Table:
    """A table, every row of which is as it must be. Raises BadInput."""
    others = [column for column in schema.names if column != EMBEDDING]
    try:
        if path.suffix == ".parquet":
            # Not by the schema it should have: that would fill columns that are missing.
            file = pq.ParquetFile(path)
            check_columns(path, file.schema_arrow, schema)
            # Row by row before it is read whole: a small file may hold the same row a billion times.
            batches = file.iter_batches(_ROWS, columns=others)
            check_table(path, name, (row for batch in batches for row in batch.to_pylist()))
            table = file.read()
            table.validate(full=True)
            if EMBEDDING in schema.names:
                check_no_nulls(path, table, EMBEDDING)
            return table.select(schema.names).cast(schema)
        with path.open(encoding="utf-8") as lines:
            rows = [_row(path, number, line) for number, line in enumerate(lines, 1)]
        vectors = {EMBEDDING} & set(schema.names)
        check_table(path, name, [{column: row[column] for column in row if column not in vectors} for row in rows])
        for number, row in enumerate(rows if vectors else (), 1):
            vector, size = row.get(EMBEDDING), schema.field(EMBEDDING).type.list_size
            if not isinstance(vector, list) or len(vector) != size or not all(type(each) is float for each in vector):
                raise refused(path, f"row {number}, column {EMBEDDING}: it is no list of {size} numbers")
        return pa.Table.from_pylist(rows, schema=schema)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise refused(path, f"it cannot be read: {str(error).splitlines()[0] if str(error) else error!r}") from None


def _row(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        row = strict_json(line)
    except (ValueError, RecursionError) as error:
        raise refused(path, f"row {number}: it is not JSON: {error}") from None
    if not isinstance(row, dict):
        raise refused(path, f"row {number}: it is no JSON object")
    return row


def _provenance(path: Path) -> dict[str, Any]:
    try:
        content = strict_json((path / PROVENANCE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _no_export(path, f"it has no {PROVENANCE}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise _no_export(path, f"{PROVENANCE} cannot be read: {error}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _no_export(path, f"{PROVENANCE} does not speak of a bank")
    if content.get("format_version") != RECORD_FORMAT:
        raise OtherFormat(
            f"{path} was exported in format {content.get('format_version')}",
            expected=f"format {RECORD_FORMAT}",
            next_step="export it again with this version, or import it with the one that wrote it",
        )
    check_provenance(path / PROVENANCE, content)
    return content


def _no_export(path: Path, found: str) -> BadInput:
    return BadInput(
        f"{path} is no exported bank: {found}",
        expected="a folder that `crl bank export` wrote",
        next_step="`crl bank export RUN --to FOLDER` writes one",
    )


def dataset_card(tables: Mapping[str, pa.Table], provenance: Mapping[str, Any], files: Mapping[str, str]) -> str:
    """`README.md`: one configuration a table, the entries by default."""
    entries = tables["entries"].num_rows
    front = {
        "pretty_name": f"Experience bank of {provenance['experiment']} after round {provenance['round']}",
        "tags": ["complementary-rl", "experience-bank"],
        "size_categories": [next((name for limit, name in _SIZES if entries < limit), "1M<n<10M")],
        "configs": [
            {"config_name": name, "data_files": [{"split": "train", "path": files[name]}]}
            | ({"default": True} if name == "entries" else {})
            for name in TABLES
        ],
    }
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False, allow_unicode=True)}---\n\n# {front['pretty_name']}\n\n",
        f"{entries} experiences that an extractor distilled from games of an agent, in "
        f"{', '.join(provenance['families']) or 'no task family'}, with what led to each and what each did. ",
        "Written by `crl bank export`; `provenance.json` says from which record: "
        f"snapshot {provenance['snapshot_digest']}.\n\n",
        "```python\nfrom datasets import load_dataset\n\n",
        'entries = load_dataset("path/to/this/folder", split="train")\n',
        'lineage = load_dataset("path/to/this/folder", "lineage", split="train")\n```\n',
    ]
    for name, row_type in TABLES.items():
        summary = (row_type.__doc__ or "").strip().splitlines()[0]
        parts.append(f"\n## {name}\n\n{summary} {tables[name].num_rows} rows.\n\n| column | meaning |\n|---|---|\n")
        for field in (schema_of(row_type).field(column) for column in schema_of(row_type).names):
            parts.append(f"| {field.name} | {field.metadata[b'description'].decode().replace('|', ' or ')} |\n")
        if name == "entries" and EMBEDDING in tables[name].column_names:
            embedder = provenance["embedder"]
            parts.append(
                f"| {EMBEDDING} | unit vector of the text by {as_text(embedder['name'])} "
                f"({embedder['digest'][:12]}) |\n"
            )
    return "".join(parts)
