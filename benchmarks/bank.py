"""The bank beside LanceDB, Chroma and plain JSON + NPZ files: add, search, snapshot, reopen, bytes on disk.

    pip install -e ".[benchmarks]"
    python benchmarks/bank.py [--sizes 20000 100000 1000000] [--systems crl lancedb chroma json] [--repetitions 3]
                              [--data DIRECTORY] [--out research/bank_benchmark.md]

All systems are measured side by side in one run, each step by each system in turn. Exhaustive search is compared with
exhaustive search, approximate with approximate at the least effort that reaches a recall@16 of 0.95. Vectors are given:
no model runs. DIRECTORY is one that `bank_data.py` fills with real texts and their MiniLM embeddings (more are mixed
from them); without it they are made up. A system that is not installed is left out, with a word. Chroma is left out
above 100,000 entries. With `--out` the page with the table is written, else the table is printed.
"""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

from bank_systems.measure import SYSTEMS, measure
from bank_systems.page import page, tables

_MODULES = {"lancedb": "lancedb", "chroma": "chromadb"}
_LARGEST_CHROMA = 100_000


def main() -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[20_000, 100_000])
    parser.add_argument("--systems", nargs="+", choices=list(SYSTEMS), default=list(SYSTEMS))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    present = [name for name in arguments.systems if importlib.util.find_spec(_MODULES.get(name, "json")) is not None]
    for name in sorted(set(arguments.systems) - set(present)):
        print(f"{name} is left out: it is not installed (pip install -e '.[benchmarks]')", flush=True)
    began, measured = time.monotonic(), []
    for size in arguments.sizes:
        names = [name for name in present if name != "chroma" or size <= _LARGEST_CHROMA]
        with tempfile.TemporaryDirectory() as root:
            measured.append(measure(size, names, arguments.repetitions, arguments.data, Path(root)))
    seconds = time.monotonic() - began
    if arguments.out is None:
        print(tables(measured))
    else:
        command = "python benchmarks/bank.py --sizes " + " ".join(map(str, arguments.sizes))
        arguments.out.write_text(page(measured, command, real=arguments.data is not None, seconds=seconds))
    print(f"{seconds / 60:.0f} minutes")


if __name__ == "__main__":
    main()
