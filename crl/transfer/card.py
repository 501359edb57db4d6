"""The dataset card of an exported bank: YAML that `datasets` reads, and words for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import yaml

from crl.records.base import schema_of
from crl.report.markdown import plain
from crl.run.imports import EMBEDDING
from crl.transfer.rows import TABLES

_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


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
                f"| {EMBEDDING} | unit vector of the text by {plain(embedder['name'])} ({embedder['digest'][:12]}) |\n"
            )
    return "".join(parts)
