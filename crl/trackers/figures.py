"""A round as a tracker gets it, derived from the record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from crl.paths import quoted
from crl.report.markdown import code, rounds_markdown
from crl.report.summary import History, RoundSummary, random_policy
from crl.report.views import reading
from crl.run.directory import RunDirectory
from crl.run.files import canonical_json, sha256_bytes
from crl.run.head import head_after
from crl.trackers.base import RoundFigures


def round_digest(run: RunDirectory, number: int) -> str:
    """SHA-256 over the digests of a round's stages. Raises RecordDamaged."""
    stages = {stage: run.manifest(number, stage).digest for stage in sorted(run.complete_stages(number))}
    return sha256_bytes(canonical_json(stages))


def figures_of(run: RunDirectory, history: History, numbers: Sequence[int]) -> Iterator[RoundFigures]:
    """The figures of complete rounds, in order; `history` is that of the run. Raises RecordDamaged."""
    summaries = history.summaries()
    metrics = _metrics(run.path, numbers)
    for number in sorted(numbers):
        until = [each for each in summaries if each.round <= number]
        figures = {name: value for at, name, value in metrics if at == number}
        for summary in (each for each in until if each.label == str(number)):
            figures |= _of_summary(summary, until)
        yield RoundFigures(
            round=number,
            figures=figures,
            success=[row for each in until for row in each.arms],
            tables=rounds_markdown(run.experiment_name, until),
            digest=round_digest(run, number),
            head=head_after(run.path, number),
        )


def _metrics(path: Path, numbers: Sequence[int]) -> list[tuple[Any, ...]]:
    """(round, name, value) of every metric of these rounds."""
    with reading(path, numbers, views={"metrics"}) as connection:
        return connection.sql("SELECT round, stage || '/' || name, value FROM metrics ORDER BY ALL").fetchall()


def _of_summary(each: RoundSummary, until: Sequence[RoundSummary]) -> dict[str, float]:
    rates = {
        "success/guided": each.guided,
        "success/free": each.free,
        "success/synthetic": each.synthetic,
        "held_out/with_bank": each.with_bank,
        "held_out/without_bank": each.without_bank,
        "held_out/random": random_policy(until) if each.without_bank.episodes else each.random,
    }
    known = {
        "bank/entries": each.bank,
        "buffer/waiting": each.buffer,
        **{f"updates/{role}": count for role, count in each.updates.items()},
        "extractor/malformed": each.malformed / each.outputs if each.outputs else None,
        "alarms": len(each.alarms),
        **{f"bank/{kind}": count for kind, count in each.changes.items()},
        **{f"seconds/{stage}": taken for stage, taken in each.seconds.items()},
        **{name: rate.value for name, rate in rates.items()},
    }
    return {name: float(value) for name, value in known.items() if value is not None}


def record_of(path: Path, head: str = "") -> str:
    """The link to the record, as Markdown: where it is, and what vouches for it, after a round with the head then."""
    verify = f"crl verify {quoted(path)}" + (f" --head {head}" if head else "")
    return f"record: {code(str(path))}, verified by {code(verify)}"
