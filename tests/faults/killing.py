"""Kill a real run at chosen moments: the flow process, its engines, or both; and look at what is left each time."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from crl.audit.audit import problems_of
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from crl.run.journal import Journal
from crl.run.manifest import parse_key
from tests.faults.looking import Identity, check_journal, check_kept
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.recipe_runs import tiny_name, train_tiny
from tests.tiny_run import NAME, ROOT, command, digests, environment, leftovers, train

WORKER = "crl.engine.worker"
MARK = "CRL_TEST_MARK"
ORPHAN_SECONDS = 30.0
"""Until nothing of a killed run may live any more. On an idle machine it takes less than a second."""

Place = tuple[int, str]


def workers_of(pid: int) -> list[psutil.Process]:
    """The engine processes that a process started."""
    found = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if WORKER in child.cmdline():
                    found.append(child)
    return found


def marked(mark: str) -> list[psutil.Process]:
    """Every living process that carries a mark in its environment, whoever its parent is by now."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


@dataclass
class KilledRun:
    """A run in `runs` that is started and killed until it is done, compared with the undisturbed one."""

    runs: Path
    reference: Path
    rounds: int
    random: random.Random
    changes: Mapping[str, Any] = field(default_factory=dict)
    """Settings that the run has beside those of all of them."""
    recipe: str = "complementary"
    kills: list[str] = field(default_factory=list)
    _process: subprocess.Popen[bytes] | None = None
    _seen: dict[str, Identity] = field(default_factory=dict)
    _journal_read: int = 0

    def __post_init__(self) -> None:
        self.path = self.runs / (NAME if self.recipe == "complementary" else tiny_name(self.recipe))
        self.mark = f"{os.getpid()}-{self.random.random()}"
        self.expected = digests(self.reference, self.rounds)
        self.stages = list(self.expected)
        run = RunDirectory.open(self.reference)
        self.seconds = {key: run.manifest(*parse_key(key)).provenance["seconds"] for key in self.stages}

    # -- running ---------------------------------------------------------------------------------------------------

    @property
    def alive(self) -> bool:
        """Whether an attempt runs now."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, prefect: bool = False, shards: int = 1) -> None:
        """A new attempt: `crl resume` where the run knows what it is to reach, else (or under Prefect) `crl train`."""
        known = any(event["event"] == "target" for event in self._events())
        if known and not prefect and shards == 1:
            arguments = ["resume", str(self.path)]
        else:
            arguments = self._training(prefect, {**self.changes, "runtime__shards": shards, "runtime__retries": 20})
        self.output = self.runs.parent / "output.txt"
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                command(*arguments), cwd=ROOT, env=environment(self.runs, {MARK: self.mark}), stdin=subprocess.DEVNULL,
                stdout=output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def _training(self, prefect: bool, changes: Mapping[str, Any]) -> list[str]:
        """Arguments of `crl train` for the rounds that are missing."""
        rounds = self._missing_rounds()
        if self.recipe == "complementary":
            return train(rounds, *(["--prefect"] if prefect else []), **changes)
        more = [word for key, value in changes.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        return [*train_tiny(self.recipe, "--prefect" if prefect else "--no-prefect", rounds), *more]

    def finish(self) -> None:
        """Let the run come to its end, undisturbed from now on."""
        if not self.alive:
            self.start()
        assert self._process is not None
        assert self._process.wait(PATIENCE_SECONDS) == 0, self._said()

    def end(self) -> None:
        """After a failed test: nothing of it stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        for process in marked(self.mark):
            with contextlib.suppress(psutil.Error):
                process.kill()

    # -- killing ---------------------------------------------------------------------------------------------------

    def kill_in(self, key: str, *, whom: str, manner: str | None = None) -> bool:
        """SIGKILL `whom` (flow, engine or both) at a random moment of a stage, or, `committed`, right after it; False
        where the run ended before."""
        assert self._process is not None
        manner = manner or self.random.choices(["starting", "working", "committed"], [2, 5, 1])[0]
        if not self._wait_for(key, manner):
            assert self._process.returncode == 0, self._said()
            return False
        workers = workers_of(self._process.pid)
        victims = workers if whom != "flow" else []
        if whom == "engine" and workers:  # of several engines some, or all
            victims = self.random.sample(workers, self.random.randint(1, len(workers)))
        if whom != "engine" or not workers:
            # Stopped first: it must not start another engine between the two kills.
            self._process.send_signal(signal.SIGSTOP)
            victims = [*victims, psutil.Process(self._process.pid)]
        for victim in victims:
            with contextlib.suppress(psutil.Error):
                victim.kill()
        self._journal_read = len(self._events())
        flow_is_dead = len(victims) > len(workers) or whom == "flow" or not workers
        self.kills.append(f"{key} {manner}: {whom if workers else 'flow (no engine yet)'}")
        if flow_is_dead:
            self._process.wait()
            self._look()
        return True

    def kill_in_each(self, *keys: str, least: int) -> None:
        """Kill somebody in each of these stages, as long as there is something to kill, and finish the run: it is the
        one that nobody disturbed, after at least so many kills."""
        for key in keys:
            if not self.alive:
                self.start(shards=self.random.choice([1, 2]))
            if not self.kill_in(key, whom=self.random.choice(["flow", "engine", "both"])):
                break
        self.finish()
        assert len(self.kills) >= least
        assert digests(self.path) == self.expected
        assert leftovers(self.path) == []
        run = RunDirectory.open(self.path)
        assert problems_of(run, recipe_of(run.method)) == []

    def _wait_for(self, key: str, manner: str) -> bool:
        started = parse_key(key)
        directory = self.path / "rounds" / key
        temporary = f".tmp-{started[1]}-*"
        parts = directory.parent / f".parts-{started[1]}"

        def begun() -> bool:
            return directory.exists() or not self.alive or self._started(started)

        def writing() -> bool:
            return directory.exists() or not self.alive or parts.exists() or any(directory.parent.glob(temporary))

        wait_until(begun, f"{key} started", every=0.02)
        if manner == "starting":
            time.sleep(self.random.uniform(0.0, 1.0))
        elif manner == "working":
            wait_until(writing, f"{key} was being written", every=0.002)
            time.sleep(self.random.uniform(0.0, 0.9) * self.seconds[key])
        else:
            wait_until(lambda: directory.exists() or not self.alive, f"{key} was committed", every=0.001)
        return self.alive

    def _started(self, place: Place) -> bool:
        return any(
            event["event"] == "stage_started" and (event["round"], event["stage"]) == place
            for event in self._events()[self._journal_read :]
        )

    # -- looking ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """After the flow was killed: no orphan, a sound record, and what was complete is as it was."""
        wait_until(lambda: not marked(self.mark), "everything of the killed run had ended", ORPHAN_SECONDS)
        if not (self.path / "experiment.yaml").exists():
            return
        self._seen = check_kept(self.path, self._seen, self.expected)

    def check_journal(self) -> None:
        """No stage was committed twice, and none was begun after it was complete."""
        check_journal(self.path)

    def _events(self) -> list[dict[str, Any]]:
        return Journal(self.path).read() if self.path.is_dir() else []

    def _missing_rounds(self) -> int:
        complete = digests(self.path) if (self.path / "experiment.yaml").exists() else {}
        missing = next((parse_key(key)[0] for key in self.stages if key not in complete), self.rounds + 1)
        return self.rounds - max(missing - 1, 0)

    def _said(self) -> str:
        return self.output.read_text(errors="replace")[-4000:]


@contextlib.contextmanager
def killed_run(
    runs: Path, reference: Path, rounds: int, seed: int, recipe: str = "complementary", **changes: Any
) -> Iterator[KilledRun]:
    """A :class:`KilledRun` of which nothing lives on afterwards. The seed stands in the test's output."""
    print(f"seed of the kills: {seed}")
    runs.mkdir(parents=True)
    killed = KilledRun(runs, reference, rounds, random.Random(seed), changes, recipe)
    try:
        yield killed
    finally:
        killed.end()
        print("\n".join(killed.kills))
