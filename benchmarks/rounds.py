"""Does a round cost more the more rounds there were? Slopes over the rounds of a run, from what its manifests note.

    python benchmarks/rounds.py RUN [--first 100] [--last 200] [--column 60]

For each stage seconds of the clock and of the processor, and the memory behind it; for each round its files and bytes,
those of the bank's store that it named first, and the bytes of the log; and the entries of the bank. A slope is that of
least squares per 100 rounds, with its 95 % interval and as a share of the mean. Below it one line of text per series,
from the least to the largest value, by the rounds in order. Rounds that merge are compared with such rounds only.

Beside other load the same work takes more seconds of the processor, too. So each stage is also shown *at the pace of
the moment*: as if a sampled token of `distill` had taken the same in every round (a mean over five).
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from crl.report.views import query
from crl.run.directory import manifests
from crl.run.manifest import Manifest

_BARS = "▁▂▃▄▅▆▇█"
Series = dict[str, dict[int, float]]
"""Values by what they are of, and round."""


def measured(run: Path) -> Series:
    """What the manifests of a run say, by round."""
    found: Series = {}
    seen: set[str] = set()
    pace = _pace(run)

    def add(name: str, number: int, value: float) -> None:
        values = found.setdefault(name, {})
        values[number] = values.get(number, 0.0) + value

    for (number, stage), manifest in manifests(run).items():
        if not isinstance(manifest, Manifest):
            continue
        noted = manifest.provenance
        for name, kind in (("seconds", "clock"), ("processor_seconds", "processor")):
            add(f"{stage}: {kind}, s", number, float(noted.get(name, 0.0)))
            add(f"all stages: {kind}, s", number, float(noted.get(name, 0.0)))
        if number in pace:
            add(
                f"{stage}: at the pace of the moment, s",
                number,
                float(noted.get("processor_seconds", 0)) / pace[number],
            )
        memory = found.setdefault("memory at the end of a round, MB", {})
        memory[number] = float(noted.get("memory_bytes", 0)) / 1e6
        sizes = [file.bytes for name, file in manifest.digested.files.items() if not name.startswith("checkpoint/")]
        add("files, without checkpoints", number, len(sizes) + 1)
        add("bytes, without checkpoints", number, sum(sizes))
        new = [name for name in manifest.digested.shared if name not in seen]
        seen |= set(new)
        add("bytes that the bank's store grew by", number, sum((run / name).stat().st_size for name in new))
    for number, entries in query(run, "SELECT round, entries FROM bank_snapshots")[1]:
        add("entries of the bank", number, entries)
    return found


def _pace(run: Path) -> dict[int, float]:
    """How long a sampled token of `distill` took in each round, as a multiple of the mean over all rounds."""
    took = "any_value(CAST(manifest ->> '$.provenance.processor_seconds' AS DOUBLE))"
    rows = "generations JOIN stages USING (round, stage) WHERE stage = 'distill'"
    sql = f"SELECT round, {took} / sum(list_sum(loss_mask)) FROM {rows} GROUP BY round"
    seconds = {int(number): float(value) for number, value in query(run, sql)[1] if value}
    mean = float(np.mean(list(seconds.values()))) if seconds else 1.0
    near = {number: [seconds[at] for at in range(number - 2, number + 3) if at in seconds] for number in seconds}
    return {number: float(np.mean(values)) / mean for number, values in near.items()}


def slope(values: Mapping[int, float]) -> tuple[float, float]:
    """Change per 100 rounds, and half of its 95 % interval."""
    rounds_N, values_N = np.array(sorted(values), float), np.array([values[number] for number in sorted(values)])
    centered_N = rounds_N - rounds_N.mean()
    spread = (centered_N**2).sum()
    per_round = (centered_N * values_N).sum() / spread
    left_N = values_N - values_N.mean() - per_round * centered_N
    deviation = np.sqrt((left_N**2).sum() / max(1, len(values_N) - 2) / spread)
    return 100 * per_round, 100 * 1.96 * deviation


def drawn(values: Mapping[int, float], width: int) -> str:
    """The series as a line of text: means of equal stretches of rounds."""
    stretches = np.array_split(np.array([values[number] for number in sorted(values)]), min(width, len(values)))
    means = [float(stretch.mean()) for stretch in stretches]
    least, most = min(means), max(means)
    steps = [0 if most == least else round((mean - least) / (most - least) * (len(_BARS) - 1)) for mean in means]
    return "".join(_BARS[step] for step in steps)


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--last", type=int, default=200)
    parser.add_argument("--column", type=int, default=60, help="characters of a line of text")
    options = parser.parse_args()
    for name, values in measured(options.run).items():
        chosen = {number: value for number, value in values.items() if options.first <= number <= options.last}
        if name.startswith("all stages"):  # without the rounds that merge, which take longer
            chosen = {number: value for number, value in chosen.items() if number % 2}
        if len(chosen) < 3:
            continue
        mean, (change, interval) = float(np.mean(list(chosen.values()))), slope(chosen)
        holds = "holds 0" if abs(change) <= interval else "GROWS" if change > 0 else "shrinks"
        share = f"{change / mean:+.1%}" if mean else "-"
        print(f"{name}: mean {mean:.4g}; per 100 rounds {change:+.3g} ± {interval:.2g} ({share}): {holds}")
        print(f"    {min(chosen.values()):.4g} {drawn(chosen, options.column)} {max(chosen.values()):.4g}")


if __name__ == "__main__":
    main()
