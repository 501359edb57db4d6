"""A made Slurm for tests: `sbatch` reads a script's own options, ends its job as asked, and begins it again.

It stands for what slurm.schedmd.com says of sbatch, preemption and scontrol: the batch script alone gets the signal of
`--signal=B:…` before the time is up; a preempted job is in the queue again before its processes are asked to end; a
lost machine takes every process; a job begins again only with `--requeue` or after `scontrol requeue`. It allocates
nothing: every node is this machine, by the address that others reach it at.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import psutil

from tests.faults.killing import MARK, marked
from tests.processes import PATIENCE_SECONDS, kill, wait_until

COMMANDS = {
    "squeue": 'echo "$(cat "$FAKE_SLURM/state")"',
    "scontrol": """case "$1" in
    requeue) [[ $2 == "$SLURM_JOB_ID" ]] && touch "$FAKE_SLURM/requeued" ;;
    show) [[ $2 == hostnames ]] && tr , '\\n' <<<"$3" ;;
    *) exit 1 ;;
    esac""",
    # As many tasks as it is asked for, each with its number; asked to end, it ends them.
    "srun": """count=1
    while [[ $1 == --* ]]; do
        [[ $1 != --ntasks=* ]] || count=${1#--ntasks=}
        shift
    done
    trap 'kill $(jobs -p) 2>/dev/null' EXIT
    trap 'exit 143' TERM
    for ((task = 0; task < count; task++)); do SLURM_PROCID=$task "$@" & done
    wait""",
}


class End(Enum):
    """How an attempt of a job ends before its script does."""

    time_is_up = "the batch script gets the signal that it asked for"
    preempted = "all processes are asked to end, and the job is in the queue again"
    machine_lost = "all processes are killed"
    canceled = "a person cancels it: all processes are asked to end"


@dataclass
class Slurm:
    """A cluster of one partition in a folder."""

    folder: Path
    environment: Mapping[str, str]
    """Of whoever submits."""
    directory: Path
    """Where they submit."""
    starts: int = 0
    """Attempts of the last job."""
    mark: str = field(default_factory=lambda: f"slurm-{os.getpid()}-{os.urandom(4).hex()}")

    def __post_init__(self) -> None:
        (self.folder / "bin").mkdir(parents=True)
        for name, body in COMMANDS.items():
            self._command(name, f"#!/bin/bash\n{body}\n")
        for name, module in {"crl": "crl", "dask": "distributed.cli"}.items():
            code = (
                "from dask.cli import run_cli; run_cli()"
                if name == "dask"
                else f"import runpy; runpy.run_module({module!r}, run_name='__main__')"
            )
            self._command(name, f"#!{sys.executable}\nimport sys; sys.argv[0] = {name!r}\n{code}\n")

    def _command(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text, encoding="utf-8")
        path.chmod(0o755)

    def sbatch(
        self, script: Path, *words: str, ends: Sequence[tuple[Callable[[], Any], End]] = (), **options: str
    ) -> tuple[int, str]:
        """Run a job to its end: the exit code of its last attempt, and what its file says.

        `ends` are (when, how) of the attempts that end early; `options` those before the script.
        """
        settings, number, waiting = {**options_of(script), **options}, 4242, list(ends)
        log = self.directory / settings["output"].replace("%j", str(number))
        nodes, each = int(settings["nodes"]), int(settings["gpus-per-node"])
        self.starts = 0
        while True:
            for name in ("requeued", "state"):
                (self.folder / name).unlink(missing_ok=True)
            self._state("RUNNING")
            job = {
                "SLURM_JOB_ID": str(number), "SLURM_JOB_NODELIST": ",".join(f"node-{node}" for node in range(nodes)),
                "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_GPUS_ON_NODE": str(each), "SLURMD_NODENAME": address_here(),
                **({"SLURM_RESTART_COUNT": str(self.starts)} if self.starts else {}),
            }  # fmt: skip
            path = os.pathsep.join([str(self.folder / "bin"), self.environment["PATH"]])
            variables = {**self.environment, **job, MARK: self.mark, "FAKE_SLURM": str(self.folder), "PATH": path}
            self.starts += 1
            mode = "ab" if settings["open-mode"] == "append" else "wb"
            with log.open(mode) as output:
                process = subprocess.Popen(
                    ["bash", str(script), *words], cwd=self.directory, env=variables, stdin=subprocess.DEVNULL,
                    stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                )  # fmt: skip
            requeued = self._until_end(process, waiting, settings)
            kill(marked(self.mark))  # as Slurm does, whatever a script leaves behind
            code = process.wait(PATIENCE_SECONDS)
            if not requeued:
                return code, log.read_text(encoding="utf-8")

    def _until_end(
        self,
        process: subprocess.Popen[bytes],
        waiting: list[tuple[Callable[[], Any], End]],
        settings: Mapping[str, str],
    ) -> bool:
        """Wait for the script, or end it; whether the job begins again."""
        if not waiting:
            process.wait(PATIENCE_SECONDS)
            return (self.folder / "requeued").exists()
        when, how = waiting.pop(0)
        wait_until(lambda: when() or process.poll() is not None, f"{how.name} comes")
        assert process.poll() is None, f"the job ended with {process.returncode} before {how.name}"
        with contextlib.suppress(ProcessLookupError):
            if how is End.machine_lost:
                kill(marked(self.mark))
                return "requeue" in settings
            if how is End.time_is_up:
                asked = re.fullmatch(r"B:([A-Z]+)@[0-9]+", settings["signal"])
                assert asked is not None, settings["signal"]
                process.send_signal(signal.Signals[f"SIG{asked[1]}"])
            else:
                self._state("COMPLETING")
                for each in marked(self.mark):
                    with contextlib.suppress(psutil.Error):
                        each.terminate()
        process.wait(PATIENCE_SECONDS)
        if how is End.preempted:
            return "requeue" in settings
        return (self.folder / "requeued").exists()

    def _state(self, name: str) -> None:
        (self.folder / "state").write_text(name, encoding="utf-8")


def options_of(script: Path) -> dict[str, str]:
    """The options in the script: its lines `#SBATCH` before the first command, as Slurm reads them."""
    return dict(_options(script.read_text(encoding="utf-8").splitlines()))


def _options(lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        if line.startswith("#SBATCH "):
            for word in shlex.split(line.removeprefix("#SBATCH ")):
                name, _, value = word.removeprefix("--").partition("=")
                yield name, value
        elif line and not line.startswith("#"):
            return


def address_here() -> str:
    """An address of this machine that is not loopback, where it has one."""
    found = [
        each.address for all_of in psutil.net_if_addrs().values() for each in all_of if each.family == socket.AF_INET
    ]
    return next((address for address in found if not address.startswith("127.")), "127.0.0.1")
