"""Every built-in environment at random play: steps and resets per second, memory of 128 slots, beside other packages.

    python benchmarks/environments.py [--only NAME …] [--repeats 5] [--seconds 1] [--slots 128]
                                      [--out research/environments_benchmark.md]

Ours and the package that it is held against play in turn, so that both meet the same load. Rates are per second of
processor time, which a busy machine stretches less than time on the clock. A reset is a new seed, and so a new level,
with its first observation; a step is one random action in one episode. A ratio is ours by theirs of one turn: its
median, and in brackets the least and the greatest. Memory is what a process of its own grows by between the imports and
the first step of 128 episodes. What is played is in `environment_systems/`. ALFWorld is held against its package where
$ALFWORLD_DATA names the games; there the clock is that of the wall. What cannot be played here is named.
"""

from __future__ import annotations

import argparse
import multiprocessing
import platform
import statistics
import sys
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

# Run by its path, the script has its own folder in front and not the repository.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.environment_systems import grids, minihack, registered
from benchmarks.environment_systems.base import Case, Player

COLUMNS = (
    "environment", "steps/s", "resets/s", "memory", "beside", "its steps/s", "its resets/s", "its memory",
    "steps, ours : its", "resets, ours : its",
)  # fmt: skip

_WIDE = 240


@dataclass
class Rates:
    """What the turns of one player gave."""

    steps: list[float] = field(default_factory=list)
    resets: list[float] = field(default_factory=list)
    megabytes: float | None = None


@dataclass
class Measured:
    """A case with its metrics; `other` is None where there is nothing to compare with."""

    case: Case
    ours: Rates = field(default_factory=Rates)
    other: Rates | None = None


def all_cases() -> tuple[list[Case], list[str]]:
    """Every case that can be played here, and a word on each environment that cannot."""
    cases, missing = registered.cases(grids.KINDS | minihack.KINDS)
    nethack = minihack.cases()
    return [*grids.cases(), *nethack, *cases], [*([] if nethack else ["minihack: not installed"]), *missing]


def play(player: Player, slots: int, seconds: float, first_seed: int) -> tuple[float, float]:
    """(steps per second, resets per second) of one player that plays episodes of new seeds for so long."""
    steps = resets = 0
    stepping = resetting = 0.0
    for wave in count():
        seeds = range(first_seed + wave * slots, first_seed + (wave + 1) * slots)
        began = time.process_time()
        player.reset(seeds)
        resetting, resets, began = resetting + time.process_time() - began, resets + slots, time.process_time()
        while made := player.step():
            steps += made
        stepping += time.process_time() - began
        if stepping + resetting >= seconds and stepping > 0 and resetting > 0:
            break
    return steps / stepping, resets / resetting


def measure(case: Case, repeats: int, seconds: float) -> Measured:
    """The rates of a case; ours and the other take turns, on the same seeds."""
    measured = Measured(case, other=Rates() if case.other else None)
    players = [(measured.ours, case.ours())]
    if case.other is not None and measured.other is not None:
        players.append((measured.other, case.other()))
    for _, player in players:
        play(player, case.slots, 0.0, 0)  # what is made once is not timed
    for turn in range(repeats):
        for rates, player in players if turn % 2 == 0 else players[::-1]:
            steps, resets = play(player, case.slots, seconds, 1_000 + turn * 100_000)
            rates.steps.append(steps)
            rates.resets.append(resets)
    for _, player in players:
        player.close()
    found = [registered.compared(case.name) for _ in range(repeats)]
    if None not in found:
        measured.ours = Rates([each.steps for each in found], [each.resets for each in found])
        measured.other = Rates([each.their_steps for each in found], [each.their_resets for each in found])
    return measured


def grown(case: Case, other: bool, slots: int) -> float:
    """Megabytes (10^6 bytes) that this process grows by when so many episodes begin and are stepped once."""
    make = case.other if other else case.ours
    assert make is not None
    warm = make()
    warm.reset([0])
    warm.step()
    warm.close()
    before = psutil.Process().memory_info().rss
    player = make()
    player.reset(range(slots))
    player.step()
    megabytes = (psutil.Process().memory_info().rss - before) / 1e6
    player.close()
    return megabytes


def memory_of(case: Case, other: bool, slots: int) -> float:
    """:func:`grown` in a process of its own, forked before anything is played here: nothing freed is there to reuse."""
    forking = multiprocessing.get_context("fork")
    theirs, ours = forking.Pipe()
    process = forking.Process(target=lambda: ours.send(grown(case, other, slots)))
    process.start()
    ours.close()
    try:
        megabytes: float = theirs.recv()
    except EOFError:
        raise SystemExit(f"memory of {case.name} could not be measured: its process ended (see above)") from None
    process.join()
    return megabytes


def number(value: float) -> str:
    """Three digits that count."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else f"{value:.3g}"


def megabytes(rates: Rates) -> str:
    """The memory, where it was measured."""
    return "–" if rates.megabytes is None else f"{number(rates.megabytes)} MB"


def ratio(ours: list[float], other: list[float]) -> str:
    """Median of the ratios of each turn, with the least and the greatest."""
    ratios = [a / b for a, b in zip(ours, other, strict=True)]
    return f"{number(statistics.median(ratios))}× ({number(min(ratios))}–{number(max(ratios))})"


def row(measured: Measured) -> list[str]:
    """The cells of a case, in the order of :data:`COLUMNS`."""
    ours, other = measured.ours, measured.other
    cells = [measured.case.name, *(number(statistics.median(rates)) for rates in (ours.steps, ours.resets))]
    cells += [megabytes(ours), measured.case.other_name if measured.case.other or other is None else "its package"]
    if other is None:
        return [*cells, *["–"] * (len(COLUMNS) - len(cells))]
    cells += [number(statistics.median(rates)) for rates in (other.steps, other.resets)]
    return [*cells, megabytes(other), ratio(ours.steps, other.steps), ratio(ours.resets, other.resets)]


def page(rows: list[list[str]], missing: list[str], command: str, slots: int) -> str:
    """The table as a Markdown page."""
    lines = [
        "# Environments beside other packages", "",
        f"Written by `{command}` on one core ({platform.system()}, Python {platform.python_version()}).",
        "Rates are per second of processor time at random play; a reset draws a new level and shows it. Ours and the",
        "other package play in turn, on the same seeds: a ratio is the median of these turns, in brackets the least",
        f"and the greatest; above 1 ours is faster. Memory is that of {slots} episodes side by side, without imports.",
        "MiniHack alone gives arrays: ours reads them out as text, and a reset draws the level once more without fog,",
        "which says whether it is held out.",
        "",
        "| " + " | ".join(COLUMNS) + " |", "|" + "|".join([":---", *["---:"] * 3, ":---", *["---:"] * 5]) + "|",
        *("| " + " | ".join(cells) + " |" for cells in rows),
    ]  # fmt: skip
    return "\n".join([*lines, *(["", "Left out: " + "; ".join(missing) + "."] if missing else []), ""])


def main(arguments: list[str] | None = None) -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="cases whose name has one of these")
    # Each turn has 100,000 seeds of its own, and those from 1,000,000 on are held out.
    parser.add_argument("--repeats", type=int, default=5, choices=range(1, 10))
    parser.add_argument("--seconds", type=float, default=1.0, help="processor time of one turn of one player")
    parser.add_argument("--slots", type=int, default=128, help="episodes whose memory is measured")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    cases, missing = all_cases()
    chosen = [case for case in cases if not given.only or any(each in case.name for each in given.only)]
    if not chosen:
        parser.error(f"no case is named so; there are {', '.join(case.name for case in cases)}")
    table = Table(*COLUMNS)
    memory = {
        (case.name, other): memory_of(case, other, given.slots)
        for case in chosen
        for other in ((False, True) if case.other else (False,))
    }
    rows = []
    for case in chosen:
        measured = measure(case, given.repeats, given.seconds)
        measured.ours.megabytes = memory[case.name, False]
        if measured.other is not None:
            measured.other.megabytes = memory.get((case.name, True))
        rows.append(row(measured))
        table.add_row(*rows[-1])
        print(f"{case.name}: done", file=sys.stderr, flush=True)
    screen = Console()
    # A pipe or a file takes lines of any length; a terminal folds cells.
    (screen if screen.is_terminal else Console(width=_WIDE)).print(table)
    for each in missing:
        print(f"left out: {each}")
    if given.out is not None:
        size = f" --repeats {given.repeats} --seconds {given.seconds:g} --slots {given.slots}"
        only = " --only " + " ".join(f"'{each}'" for each in given.only) if given.only else ""
        given.out.write_text(page(rows, missing, f"python benchmarks/environments.py{size}{only}", given.slots))


if __name__ == "__main__":
    main()
