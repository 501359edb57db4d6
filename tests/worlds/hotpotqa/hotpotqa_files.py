"""Records in the forms in which HotpotQA is handed around, made for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

CONTEXT = {
    "Old Mill": ["The Old Mill stands in Farrow.", " It was built by Ada Quill."],
    "Ada Quill": ["Ada Quill (1801–1870) was a builder.", " She kept a tame jackdaw."],
    "Farrow": ["Farrow is a village."],
}


def record(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A record in the official form."""
    return {
        "_id": f"5a{number:022d}",
        "question": f"Which bird did the builder of the Old Mill keep ({number})?",
        "answer": "a jackdaw",
        "type": "bridge",
        "level": "medium",
        "supporting_facts": [["Old Mill", 1], ["Ada Quill", 1]],
        "context": [[title, sentences] for title, sentences in CONTEXT.items()],
        **changes,
    }


def in_columns(each: dict[str, Any]) -> dict[str, Any]:
    """A record as `datasets` writes it."""
    titles, numbers = zip(*each["supporting_facts"], strict=True)
    changed = {
        "id": each["_id"],
        "supporting_facts": {"title": list(titles), "sent_id": list(numbers)},
        "context": {
            "title": [title for title, _ in each["context"]],
            "sentences": [sentences for _, sentences in each["context"]],
        },
    }
    return {key: value for key, value in each.items() if key != "_id"} | changed


def plain(each: dict[str, Any]) -> dict[str, Any]:
    """A record without paragraphs."""
    return {key: each[key] for key in ("question", "answer", "type")}


def write(path: Path, records: list[Any]) -> str:
    """Write a file; its name."""
    path.write_text(json.dumps(records), encoding="utf-8")
    return path.name
