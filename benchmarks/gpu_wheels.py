"""The wheels that a bare machine with a GPU lacks, in parts that can be carried: downloaded, or built from source.

    python benchmarks/gpu_wheels.py --to FOLDER [--part-mib 48] [--list NAME==VERSION ...] [--python 3.12]

Such a machine has PyTorch, transformers and no package index; `benchmarks/gpu_suite.py` needs what is listed here. Each
part is a folder (part-01, part-02, …) of at most so many MiB, the most needed wheels first: without DuckDB, FAISS and
the rest every step that needs them is skipped. On that machine:

    python3 -m pip install --no-index --no-deps --no-compile --target /tmp/site FOLDER/part-*/*.whl
    PYTHONPATH=/tmp/site python3 benchmarks/gpu_suite.py

Versions are those of constraints.txt. Dependencies are not followed, since the machine has most of them. pip's own
configuration and its variables (PIP_FIND_LINKS, PIP_NO_INDEX) are honored.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NEEDED = (
    "pydantic", "pydantic_core", "annotated-types", "typing-inspection", "deepspeed", "hjson", "einops", "msgpack",
    "py-cpuinfo", "duckdb", "faiss-cpu", "trl", "datasets", "dill", "multiprocess", "xxhash", "liger-kernel==0.8.5",
)  # fmt: skip
"""Most needed first: pydantic, then DeepSpeed with what it imports."""
MIB = 1 << 20


def pinned(names: Iterable[str]) -> list[str]:
    """Requirements with the versions of constraints.txt, where they name none of their own."""
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    versions = {_plain(name): version for name, version in lines}
    return [
        f"{name}=={versions[_plain(name)]}" if "==" not in name and _plain(name) in versions else name for name in names
    ]


def fetch(requirement: str, folder: Path, python: str) -> Path:
    """Download a wheel for x86-64 Linux and that Python; where there is none, build one that fits any machine."""
    platforms = [f"manylinux_2_{minor}_x86_64" for minor in (17, 24, 27, 28, 31, 34, 35)] + ["manylinux2014_x86_64"]
    machine = ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for platform in platforms:
        machine += ["--platform", platform]
    before = set(folder.glob("*.whl"))
    done = _pip("download", *machine, "--dest", str(folder), requirement)
    if done.returncode:
        built = _pip("wheel", "--no-build-isolation", "--wheel-dir", str(folder), requirement)
        if built.returncode:
            raise SystemExit(f"{requirement}: no wheel, and building one failed:\n{done.stderr}{built.stderr}")
    (wheel,) = set(folder.glob("*.whl")) - before
    if done.returncode and not wheel.name.endswith("-none-any.whl"):
        raise SystemExit(f"{requirement}: there is no wheel for Python {python}, and one built here fits only this one")
    return wheel


def parts(wheels: Sequence[Path], most: int) -> list[list[Path]]:
    """Wheels in their order, each in the first part that has room for it. Exits where one alone is over the limit."""
    made: list[list[Path]] = []
    for wheel in wheels:
        size = wheel.stat().st_size
        if size > most:
            raise SystemExit(f"{wheel.name} has {size / MIB:.1f} MiB: no part of {most / MIB:g} MiB can hold it. "
                             "Leave it out of --list, or raise --part-mib.")  # fmt: skip
        room = next((part for part in made if sum(each.stat().st_size for each in part) + size <= most), None)
        made.append([wheel]) if room is None else room.append(wheel)
    return made


def _pip(command: str, *more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DS_BUILD_OPS": "0"}  # DeepSpeed's kernels are compiled where they are used
    call = [sys.executable, "-m", "pip", command, "-q", "--no-deps", "--disable-pip-version-check", *more]
    return subprocess.run(call, env=environment, capture_output=True, text=True, check=False)


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, required=True, metavar="FOLDER", help="must not exist, or be empty")
    parser.add_argument("--part-mib", type=float, default=48, metavar="N", help="most MiB of a part")
    parser.add_argument("--list", nargs="+", default=NEEDED, metavar="NAME==VERSION")
    parser.add_argument("--python", default="3.12", help="of the machine with the GPU")
    chosen = parser.parse_args(arguments)
    if chosen.to.exists() and (not chosen.to.is_dir() or any(chosen.to.iterdir())):
        parser.error(f"--to: {chosen.to} is not an empty folder; name another one, or remove it")
    with tempfile.TemporaryDirectory() as scratch:
        wheels = [fetch(each, Path(scratch), chosen.python) for each in pinned(chosen.list)]
        for number, part in enumerate(parts(wheels, int(chosen.part_mib * MIB)), 1):
            folder = chosen.to / f"part-{number:02}"
            folder.mkdir(parents=True)
            for wheel in part:
                shutil.move(wheel, folder / wheel.name)
            size = sum(each.stat().st_size for each in folder.iterdir())
            print(f"{folder}: {size / MIB:.1f} MiB, {', '.join(wheel.name.split('-')[0] for wheel in part)}")


if __name__ == "__main__":
    main()
