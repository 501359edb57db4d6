"""Disk and opening time of many rounds of a large bank, through the real record.

    python benchmarks/disk.py [--entries 100000] [--rounds 100] [--share 0.01] [--data DIRECTORY] [--repetitions 5]

Round 0 publishes all entries; each later round changes a share of them (half get a new text, a quarter is new, a
quarter goes). Printed are the bytes of one snapshot (what round 0 takes), of all rounds and their ratio, with and
without the vectors, and the seconds to open the first, the middle and the last round: rows, texts and embeddings,
every file checked against its SHA-256. Opening is repeated with the rounds in turn. DIRECTORY is one that
`bank_data.py` fills with real texts and their embeddings; without it they are made up.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bank_systems.data import Source
from bank_systems.record import BankRun

from crl.bank.segments import load_texts

_LIMIT_RATIO, _LIMIT_SECONDS = 3.0, 2.0


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--share", type=float, default=0.01)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--repetitions", type=int, default=5)
    arguments = parser.parse_args()
    source = Source(arguments.data)
    with tempfile.TemporaryDirectory() as root:
        run = BankRun(Path(root), capacity=arguments.entries * 10)
        try:
            published = publish(run, source, arguments.entries, arguments.rounds, arguments.share)
            show_bytes([run.bank_bytes(number) for number in range(arguments.rounds + 1)])
            print(f"seconds to publish a round: {spread(published)}")
            opened = [1, max(1, arguments.rounds // 2), arguments.rounds]
            show_opening(run, list(dict.fromkeys(opened)), arguments.repetitions)
        finally:
            run.close()


def publish(run: BankRun, source: Source, entries: int, rounds: int, share: float) -> list[float]:
    """Write every round; seconds of each after the first."""
    rows = source.rows(entries)
    present = dict(zip(rows.ids, rows.families, strict=True))
    run.publish_first(rows)
    seconds = []
    for number in range(1, rounds + 1):
        changes = source.changes(present, share)
        run.propose(number, changes)
        began = time.perf_counter()
        run.consolidate(number, changes)
        seconds.append(time.perf_counter() - began)
    return seconds


def show_bytes(rounds: Sequence[Mapping[str, int]]) -> None:
    """Bytes by kind: of one snapshot, of all rounds, and the ratio."""
    print(f"{'':24}{'one snapshot':>16}{'all rounds':>16}{'ratio':>8}")
    for label, kinds in (
        ("everything", ("tables", "texts", "vectors")),
        ("without the vectors", ("tables", "texts")),
        *((f"  {kind}", (kind,)) for kind in ("tables", "texts", "vectors")),
    ):
        each = [sum(sizes[kind] for kind in kinds) for sizes in rounds]
        limit = f"  (limit {_LIMIT_RATIO:.0f})" if label == "everything" else ""
        print(f"{label:24}{each[0] / 1e6:>13.1f} MB{sum(each) / 1e6:>13.1f} MB{sum(each) / each[0]:>8.2f}{limit}")


def show_opening(run: BankRun, rounds: Sequence[int], repetitions: int) -> None:
    """Seconds to open some rounds."""
    parts: dict[int, list[tuple[float, float, float]]] = {number: [] for number in rounds}
    for _ in range(repetitions):
        for number in rounds:
            times = [time.perf_counter()]
            bank = run.bank(number)
            times.append(time.perf_counter())
            texts = load_texts(run.path, bank.table)
            times.append(time.perf_counter())
            vectors_ND = run.embeddings(bank)
            times.append(time.perf_counter())
            assert len(vectors_ND) == len(bank) >= len(texts) > 0
            parts[number].append((times[1] - times[0], times[2] - times[1], times[3] - times[2]))
    print(f"seconds to open a round (limit {_LIMIT_SECONDS:.0f}); rows, texts, embeddings")
    for number, measured in parts.items():
        rows, texts, vectors = (spread(column) for column in zip(*measured, strict=True))
        print(f"  round {number:>4}: {spread([sum(each) for each in measured])}; {rows}, {texts}, {vectors}")


def spread(seconds: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


if __name__ == "__main__":
    main()
