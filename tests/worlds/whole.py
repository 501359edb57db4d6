"""Whole rounds of an experiment as a person has them: trained, killed, resumed, verified, by commands in a folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from crl.records import Episode, rows_of
from crl.run.directory import RunDirectory
from tests.processes import reap, wait_until
from tests.tiny_run import ROOT, digests


@dataclass
class Folder:
    """A folder in which commands are typed."""

    path: Path
    python: Path = field(default_factory=lambda: Path(sys.executable))

    def crl(self, words: str, runs: str = "runs", code: int = 0) -> str:
        """What a command prints, which ends with `code`."""
        done = subprocess.run(
            [self.python, "-m", "crl", *shlex.split(words)], cwd=self.path, capture_output=True, text=True, check=False,
            env=self._environ(runs),
        )  # fmt: skip
        assert done.returncode == code, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        return done.stdout + done.stderr

    def trained(self, train: str, name: str) -> Sequence[Episode]:
        """The episodes of round 2 of a run that was killed in round 1 and resumed, which is the same as one that was
        not, and verifies."""
        train = f"{train} --no-prefect --set runtime.validate_every=0"
        self.crl(train, "undisturbed")
        process = subprocess.Popen(
            [self.python, "-m", "crl", *shlex.split(train)], cwd=self.path, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=self._environ("runs"), start_new_session=True,
        )  # fmt: skip
        run = self.path / "runs" / name
        try:
            wait_until(lambda: (run / "rounds" / "0001" / "plan").is_dir(), "round 1 is planned", 300)
            process.send_signal(signal.SIGKILL)
        finally:
            reap(process)
        self.crl(f"resume {run}")
        assert digests(run) == digests(self.path / "undisturbed" / name)
        self.crl(f"verify {run}")
        return rows_of(Episode, RunDirectory.open(run).read(2, "collect", Episode))

    def _environ(self, runs: str) -> dict[str, str]:
        return {
            **os.environ, "PYTHONPATH": str(ROOT), "PREFECT_HOME": str(self.path / "prefect"),
            "CRL_RUNS": str(self.path / runs),
        }  # fmt: skip
