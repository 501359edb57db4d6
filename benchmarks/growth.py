"""How cost grows: turns of an episode, members of a group, entries of the bank, episodes of an update.

    python benchmarks/growth.py [--of turns members bank batch] [--repeats 3] [--out FILE.parquet] [--picture FILE.svg]
    python benchmarks/growth.py --of --out FILE.parquet --picture FILE.svg          # draw again what was measured

- *turns*: eight MiniHack episodes of SmolLM2-135M (two groups of four), played for 5 to 30 turns; per turn.
- *members*: two groups of 4 to 16 episodes, ten turns each; per turn.
- *batch*: a LoRA update of 16 to 256 episodes in groups of eight: 96 tokens that a group shares and 64 of each member,
  drawn at random, of which 8 are trained; per episode.
- *bank*: a query among 1,000 to 100,000 entries (batches of 32, made-up vectors in clusters), and 300 operations that
  change the bank; per query and per operation.

Sizes take turns within a repeat, so that other load hits all alike. Rollouts and updates are counted in CPU seconds
over all cores, the bank in seconds of the clock. With `--out` new rows are added to those of the file.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from products import cpu_seconds
from update_systems.recorded import MODEL

sys.path.insert(0, str(Path(__file__).parent / "rollout_systems"))
SIZES = {
    "turns": (5, 10, 15, 20, 30),
    "members": (4, 8, 16),
    "batch": (16, 64, 256),
    "bank": (1_000, 10_000, 100_000),
}
WHAT = {
    "turns": ("turns of an episode", "CPU s per turn"),
    "members": ("episodes of a group", "CPU s per turn"),
    "batch": ("episodes of an update", "CPU s per episode"),
    "retrieval": ("entries of the bank", "s per query"),
    "consolidation": ("entries of the bank", "s per operation"),
}
"""By kind of work: what grows, and the cost that is shown."""
SCHEMA = pa.schema([("of", pa.string()), ("size", pa.int64()), ("seconds", pa.float64()), ("units", pa.int64())])
Row = dict[str, Any]
_GROUP, _SHARED, _OWN, _TRAINED = 8, 96, 64, 8
_OPERATIONS, _BATCHES = 300, 20


def rollouts(of: str, threads: int) -> Callable[[int], Iterator[Row]]:
    """Plays with one model: `turns` and `members`."""
    from games import method_of, own_dtype, played, slots_of

    from crl.policies import load_policy, resolve_model

    policy = load_policy(method_of(3, own_dtype()).role("actor"), resolve_model(MODEL).path, None, threads=threads)

    def measure(size: int) -> Iterator[Row]:
        turns, members = (size, 4) if of == "turns" else (10, size)
        method = method_of(turns, own_dtype(), wave_groups=2, group_size=members)
        slots = slots_of(method, 2, members)
        began = cpu_seconds()
        figures = played(policy, method, slots)
        yield {"of": of, "size": size, "seconds": cpu_seconds() - began, "units": figures["turns"]}

    return measure


def updates(threads: int) -> Callable[[int], Iterator[Row]]:
    """Updates of one trainer: `batch`."""
    from update_systems.worker import RATE, lora_of

    from crl.config import ActorObjective, DeepSpeedConfig, OptimizerConfig, RoleConfig
    from crl.learn.terms import objectives
    from crl.learn.trainer import Trainer
    from crl.policies import resolve_model
    from crl.policies.machine import computed

    role = RoleConfig(
        model=MODEL,
        lora=lora_of("lora"),
        optimizer=OptimizerConfig(learning_rate=RATE),
        deepspeed=DeepSpeedConfig(micro_batch=8, autocast="bfloat16"),
    )
    trainer = Trainer(computed(role), model_path=resolve_model(MODEL).path, checkpoint=None, threads=threads)
    terms = objectives(ActorObjective())

    def measure(size: int) -> Iterator[Row]:
        samples = made_samples(size)
        began = cpu_seconds()
        trainer.update(samples, terms)
        yield {"of": "batch", "size": size, "seconds": cpu_seconds() - began, "units": size}

    return measure


def made_samples(count: int) -> list[Any]:
    """Episodes of random tokens; those of a group begin alike."""
    from crl.records import Sample

    random, samples = np.random.default_rng(count), []
    for number in range(count):
        if number % _GROUP == 0:
            shared = random.integers(100, 40_000, _SHARED).tolist()
        own = random.integers(100, 40_000, _OWN).tolist()
        mask = [0] * (_SHARED + _OWN - _TRAINED) + [1] * _TRAINED
        samples.append(
            Sample(
                sample_id=f"s{number}", round=1, role="actor", objective="grpo", source="0001/collect",
                generation_id=f"g{number}", reward=0.0, advantage=float(random.normal()), weight=1 / count,
                temperature=1.0, token_ids=shared + own, loss_mask=mask, logprobs=[-10.0 * each for each in mask],
            )
        )  # fmt: skip
    return samples


def bank(size: int) -> Iterator[Row]:
    """Retrieval and consolidation at one size: `bank`."""
    from bank_scale import BATCH, apart, consolidate, make, search

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        apart(make, root, None, size, _OPERATIONS)
        queries_QD = np.load(root / "queries.npy")[: _BATCHES * BATCH]
        found = apart(search, "first", root, 0, queries_QD, "auto")
        seconds = statistics.median(found.batches) / 1e3
        yield {"of": "retrieval", "size": size, "seconds": seconds, "units": BATCH}
        changed = apart(consolidate, root)
        seconds = changed.apply + changed.publish
        yield {"of": "consolidation", "size": size, "seconds": seconds, "units": _OPERATIONS}


def measured(of: str, repeats: int, threads: int) -> Iterator[Row]:
    """Every size once per repeat, after one run that warms up."""
    measure = bank if of == "bank" else updates(threads) if of == "batch" else rollouts(of, threads)
    list(measure(SIZES[of][0]))
    for _ in range(repeats):
        for size in SIZES[of]:
            yield from measure(size)


def costs(rows: list[Row]) -> dict[str, dict[int, list[float]]]:
    """Seconds per unit, by kind of work and size, least first."""
    found: dict[str, dict[int, list[float]]] = {}
    for row in rows:
        found.setdefault(row["of"], {}).setdefault(row["size"], []).append(row["seconds"] / row["units"])
    return {of: {size: sorted(values) for size, values in sorted(sizes.items())} for of, sizes in found.items()}


def show(rows: list[Row]) -> None:
    """Print the table: the median, and in brackets the least and the largest."""
    print("| what grows | | cost | as a multiple of the first |")
    print("|---|---|---|---|")
    for of, sizes in costs(rows).items():
        first = statistics.median(next(iter(sizes.values())))
        for size, values in sizes.items():
            middle, (what, unit) = statistics.median(values), WHAT[of]
            spread = f"{middle:.3g} ({values[0]:.3g}–{values[-1]:.3g}) {unit}"
            print(f"| {what} | {size:,} | {spread} | {middle / first:.2f} |")


def draw(rows: list[Row], path: Path) -> None:
    """One panel for each kind of work: cost per unit over size, median and range."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    found = costs(rows)
    with matplotlib.rc_context({"svg.hashsalt": "crl", "svg.fonttype": "none"}):
        figure = Figure(figsize=(3 * len(found), 2.8), layout="constrained")
        for axes, (of, sizes) in zip(np.ravel(figure.subplots(1, len(found))), found.items(), strict=True):
            middles = [statistics.median(values) for values in sizes.values()]
            ends = [[m - v[0], v[-1] - m] for m, v in zip(middles, sizes.values(), strict=True)]
            axes.errorbar(list(sizes), middles, yerr=np.transpose(ends), marker="o", capsize=3)
            axes.set_xscale("log")
            axes.set_xticks(list(sizes), [f"{size:,}" for size in sizes], minor=False)
            axes.set_xticks([], minor=True)
            axes.set(xlabel=WHAT[of][0], ylabel=WHAT[of][1], ylim=(0, None))
            axes.spines[["top", "right"]].set_visible(False)
        path.parent.mkdir(parents=True, exist_ok=True)
        FigureCanvasSVG(figure).print_svg(path, metadata={"Date": None})


def main() -> None:
    """Measure, add to what was measured before, print and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", nargs="*", choices=list(SIZES), default=list(SIZES))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="Parquet file of what was measured")
    parser.add_argument("--picture", type=Path, help="SVG file to draw")
    options = parser.parse_args()
    rows: list[Row] = pq.read_table(options.out).to_pylist() if options.out and options.out.is_file() else []
    for of in options.of:
        for row in measured(of, options.repeats, options.threads):
            print(f"{row['of']} {row['size']:,}: {row['seconds']:.3g} s for {row['units']}", file=sys.stderr)
            rows.append(row)
        if options.out:
            pq.write_table(pa.Table.from_pylist(rows, SCHEMA), options.out)
    show(rows)
    if options.picture:
        draw(rows, options.picture)


if __name__ == "__main__":
    main()
