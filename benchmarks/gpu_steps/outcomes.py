"""What became of the steps of gpu_suite.py: read from their output, kept as JSON, shown as tables."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu_steps.common import MARK
from benchmarks.gpu_steps.listed import STEPS


@dataclass
class Outcome:
    """What came of a step."""

    what: str
    state: str
    """done, skipped, failed, cut off."""
    seconds: float = 0.0
    why: str = ""
    """Of one that is not done."""
    metrics: dict[str, Any] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """Its last lines, where it did not end well."""
    machine: dict[str, Any] = field(default_factory=dict)
    """Device, versions, commit, scale, time."""


def why_of(metrics: Mapping[str, Any], said: Sequence[str], code: int) -> str:
    """What a part of the step says of itself, else the line that names an error, else the last one."""
    parts = [
        f"{name}: {each['failed']}" for name, each in metrics.items() if isinstance(each, dict) and "failed" in each
    ]
    if parts:
        return "; ".join(parts)[:300]
    named = [line.strip() for line in said if re.match(r"\s*[\w.]*(Error|Exception|Failed|Input|Damaged)\b", line)]
    return ([*said[-1:], *named] or [f"exit code {code}"])[-1][:300]


def read(lines: Sequence[str]) -> dict[str, Any]:
    """All metrics of an output; those of one name are joined."""
    found: dict[str, Any] = {}
    for line in lines:
        if not line.startswith(MARK):
            continue
        try:
            told = json.loads(line.removeprefix(MARK))
        except ValueError:
            continue  # cut off in the middle
        for key, value in told.items():
            joined = isinstance(value, dict) and isinstance(found.get(key), dict)
            found[key] = {**found[key], **value} if joined else value
    return found


def table(steps: Mapping[str, Outcome]) -> str:
    """Markdown: what was measured on each machine, a row per metric; then what was not, and why."""
    blocks = []
    machines: dict[str, list[str]] = {}
    for name, outcome in steps.items():
        about = {key: outcome.machine.get(key) for key in ("device", "driver", "commit", "scale", "versions")}
        machines.setdefault(json.dumps(about, sort_keys=True), []).append(name)
    for about, names in machines.items():
        facts = json.loads(about)
        versions = ", ".join(f"{name} {version}" for name, version in (facts["versions"] or {}).items())
        driver = f", driver {facts['driver']}" if facts["driver"] else ""
        head = f"{facts['device'] or 'CPU'}{driver}; {versions}; commit {facts['commit']}"
        head += "" if facts["scale"] == "full" else f"; scale {facts['scale']}, which says nothing of speed"
        rows = [f"| {name} | {key} | {value} |" for name in names for key, value in flat(steps[name].metrics)]
        if rows:
            blocks.append("\n".join([head + ":", "", "| step | what | metric |", "|---|---|---|", *rows]))
        ended = [
            f"| {name} | {each.what} | {each.state} | {each.seconds:g} | {each.why.replace('|', '/')} |"
            for name, each in ((name, steps[name]) for name in names)
        ]
        blocks.append("\n".join(["| step | | state | seconds | why |", "|---|---|---|---|---|", *ended]))
    return "\n\n".join(blocks) + "\n"


def flat(metrics: Mapping[str, Any], before: str = "") -> list[tuple[str, str]]:
    """Names and values in words, nested ones by their path."""
    rows: list[tuple[str, str]] = []
    for key, value in metrics.items():
        name = f"{before}{key.replace('_', ' ')}"
        if isinstance(value, dict):
            rows += flat(value, f"{name}: ")
        elif isinstance(value, list):
            rows.append((name, " ".join(f"{each:.3g}" if isinstance(each, float) else str(each) for each in value)))
        elif isinstance(value, bool):
            rows.append((name, "yes" if value else "no"))
        elif isinstance(value, float):
            rows.append((name, f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"))
        else:
            rows.append((name, f"{value:,}" if isinstance(value, int) else str(value).replace("|", "/")))
    return rows


def load(path: Path) -> dict[str, Outcome]:
    """The steps of a file of metrics."""
    return {name: Outcome(**each) for name, each in json.loads(path.read_text(encoding="utf-8")).items()}


def save(path: Path, steps: Mapping[str, Outcome]) -> None:
    """Write all steps in their order, at once."""
    ordered = {name: asdict(steps[name]) for name in [*STEPS, *steps] if name in steps}
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
