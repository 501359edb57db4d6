"""A run as somebody hostile hands it on: every text, id, family, reason and journal line of it is an attack."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from crl.records import Row
from crl.run import experiment_file
from crl.text.unicode import with_texts
from tests.unit.engine.harness import make_experiment
from tests.unit.report import builder

CONTROLS = "\x1b[2J\x1b]0;x\x07\x9b31m\r\b\x00\u202e\u2066\u2028\u061c"
HOSTILE = (
    f"{CONTROLS}</script><script>window.broken = 1</script><img src='http://127.0.0.1:9/x'>\"' onclick='x()"
    "$\\frac{ | `a` [red]b[/red] [b](javascript:x) :smile: {{ 7 * 7 }} %s\n\n# c\n---\nd: e"
)
FAMILY, ENTRY = f"room{HOSTILE}", f"e1{HOSTILE}"
_FREE = {
    "goal", "observation", "last_observation", "error", "prompt", "output", "reason", "alarm", "verdict", "reason_code",
    "stop_reason", "experience",
}  # fmt: skip
"""Columns for words of others."""


def hostile_run(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The run of `builder`, with these words wherever a model, an environment or another program may write."""
    with monkeypatch.context() as patch:
        patch.setattr(builder, "OLD", f"Go down{HOSTILE}")
        patch.setattr(builder, "NEW", f"Avoid it{HOSTILE}")
        tables = builder.stages()
        patch.setattr(builder, "stages", lambda: {place: _spoiled(rows) for place, rows in tables.items()})
        builder.build_run(path)
    made = make_experiment(recipe={"kind": "complementary"}).model_copy(update={"name": path.name})
    experiment_file.create(path, made)
    error = {"type": "StageFailed", "found": HOSTILE, "expected": HOSTILE, "where": HOSTILE, "next_step": HOSTILE}
    events = [
        {"time": HOSTILE, "event": "attempt_started", "token": 1},
        {"time": HOSTILE, "event": "stage_started", "token": 1, "round": 3, "stage": HOSTILE, "attempt": HOSTILE},
        {"time": HOSTILE, "event": "stage_failed", "token": 1, "round": HOSTILE, "stage": HOSTILE, "error": error},
        {"time": HOSTILE, "event": HOSTILE, "token": HOSTILE},
    ]
    with (path / "journal.jsonl").open("a", encoding="utf-8") as journal:
        journal.writelines(json.dumps(event) + "\n" for event in events)
    for name in (f"rounds/0001/a{CONTROLS.replace(chr(0), '')}", f"rounds/0002/collect/b{CONTROLS[:3]}"):
        (path / name).write_text("c", encoding="utf-8")
    (path / f"rounds/9{CONTROLS[:6]}").mkdir()
    return path


def _spoiled(tables: list[list[Row]]) -> list[list[Row]]:
    names = {"room": FAMILY, "e1": ENTRY}
    return [[_row(with_texts(row, lambda text: names.get(text, text))) for row in rows] for rows in tables]


def _row(row: Row) -> Row:
    names = {each.name for each in dataclasses.fields(row)} & _FREE
    return dataclasses.replace(row, **{name: HOSTILE for name in names if getattr(row, name) is not None})
