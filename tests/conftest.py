"""What tests of several folders share: one finished run of the tiny experiment, made once also under xdist, and one
browser (playwright allows one per process)."""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock
from xdist.scheduler import LoadScopeScheduling

from crl.run.guardian import past_proxies
from tests.processes import PATIENCE_SECONDS
from tests.recipe_runs import tiny_name, train_tiny
from tests.tiny_run import NAME, ROUNDS, crl_here, train

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
# Without these the browser itself asks the network: for components, for its time, for its variations.
CHROMIUM_ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
    # For pages of an attacker: a name, and as in browsers that let the page of any network ask this machine.
    "--host-resolver-rules=MAP *.test 127.0.0.1", "--disable-features=LocalNetworkAccessChecks",
]  # fmt: skip


TOGETHER = ("flows", "study")
"""Folders whose tests share a server, or a study that one command at a time may have."""
ALL_SLOW = re.compile(r"^pytestmark = \[?pytest\.mark\.slow\b", re.MULTILINE)
DESK = ("tests/browser/test_buttons.py", "tests/browser/test_operation_in_browser.py")
"""Files that share one `make ui`, which takes a minute to start."""
LONG = (
    "flows", "outside", "study", "faults", "learning", "browser", "record", "paper", "docs",
    "guests", "recipes", "worlds",
)  # fmt: skip
"""Folders with long files. `faults` comes after two that need no finished run, or all would wait for the first one."""


past_proxies()
gc.disable()  # until the first test runs: what is imported stays
os.fsync = os.fstat  # type: ignore[assignment]  # tests kill processes and cut no power: no disk is waited for
_kept_modules = 0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The garbage collector does not look again at what was imported before a test.

    That is a million objects, which take it half a second; torch and DeepSpeed ask for it whenever a model goes.
    """
    global _kept_modules
    if len(sys.modules) > _kept_modules + 20:
        gc.collect()
        gc.freeze()
        gc.enable()
        _kept_modules = len(sys.modules)


def pytest_unconfigure() -> None:
    """What is never looked at again would be called a leak when the interpreter ends."""
    gc.unfreeze()


def pytest_configure(config: pytest.Config) -> None:
    """Of several processes the first one watches the others' tests: it is free also when a test holds everything."""
    if not hasattr(config, "workerinput") and config.getini("faulthandler_timeout"):
        config.pluginmanager.register(Watch(float(config.getini("faulthandler_timeout")) + 5))


class Watch:
    """A test that hangs ends the whole run, a moment after its stacks were written, and is named last."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timers: dict[str, threading.Timer] = {}
        self._hung: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._timers[nodeid] = threading.Timer(self._seconds, self._end, [nodeid])
        self._timers[nodeid].daemon = True
        self._timers[nodeid].start()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        if timer := self._timers.pop(nodeid, None):
            timer.cancel()

    def _end(self, nodeid: str) -> None:
        self._hung.append(nodeid)
        for timer in list(self._timers.values()):
            timer.cancel()
        os.kill(os.getpid(), signal.SIGINT)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        for nodeid in self._hung:
            terminalreporter.line(f"HUNG {nodeid}: not over after {self._seconds:.0f} s, its threads' stacks are above")


def folder(nodeid: str) -> str:
    """Of a test, the folder below `tests`."""
    return nodeid.split("/")[1]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A file of which every test is slow is not imported where slow ones are left out."""
    if "not slow" in config.option.markexpr and collection_path.suffix == ".py":
        return True if ALL_SLOW.search(collection_path.read_text(encoding="utf-8")) else None
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders with long files come first: started last, one would run alone while the other processor is idle."""
    items.sort(key=lambda item: LONG.index(folder(item.nodeid)) if folder(item.nodeid) in LONG else len(LONG))


class ByFile(LoadScopeScheduling):
    """One worker takes a whole file, so its fixtures are made once, or a whole folder of `TOGETHER`, or `DESK`."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file in DESK:
            return "desk"
        return folder(nodeid) if folder(nodeid) in TOGETHER else file

    def remove_node(self, node: Any) -> str | None:
        """The test that a worker died in has failed: xdist would begin it again in every worker that takes its place.

        What the worker had finished does not return to the queue: a worker that is given no test never asks for more.
        """
        units = self.assigned_work[node]
        died = next(((unit, test) for unit in units.values() for test, done in unit.items() if not done), None)
        if died:
            unit, test = died
            unit[test] = True
        for name in [name for name, unit in units.items() if all(unit.values())]:
            del units[name]
        super().remove_node(node)
        return test if died else None

    def _reschedule(self, node: Any) -> None:
        """A worker keeps its last test until it knows the next one: it gets two, or hears that there are no more."""
        super()._reschedule(node)
        if not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            self._reschedule(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    """Several workers divide the tests in this way."""
    config.option.loadscopereorder = False
    return ByFile(config, log)


@pytest.fixture
def plain_charts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are not drawn, which takes a tenth of a second each, for a test of what else a page says."""
    from tests.undrawn import DRAWN, undrawn

    monkeypatch.setattr(DRAWN, undrawn)


@pytest.fixture
def unvalidated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exported banks are read without Great Expectations, which takes seconds, for a test of what else is done."""
    monkeypatch.setattr("crl.transfer.folder.require_sound", lambda brought: None)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Where Chromium lies; where there is none the tests are skipped."""
    pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine: nothing was looked at in a browser (Debian: apt install chromium)")
    return CHROMIUM


# No longer than a module: while playwright is open it runs an event loop, in which Prefect's calls turn asynchronous.
@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Any]:
    """Headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(
            executable_path=chromium, args=CHROMIUM_ARGUMENTS, timeout=PATIENCE_SECONDS * 1000
        )
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, list[str]], Path]:
    """Runs made by the command line with the real engine, each once also under xdist. To be read only."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def run(name: str, training: list[str]) -> Path:
        """The run directory of the experiment `name`, which the arguments `training` of `crl` train."""
        runs = shared / f"finished-{name}"
        with FileLock(f"{runs}.lock"):
            if not runs.exists():
                making = runs.with_name(f"{runs.name}-in-the-making")
                shutil.rmtree(making, ignore_errors=True)
                crl_here(making, *training)
                # The catalog names absolute places: it is written anew where the run will lie.
                making.rename(runs)
                crl_here(runs, "catalog", name)
        return runs / name

    return run


@pytest.fixture(scope="session")
def finished(made_once: Callable[[str, list[str]], Path]) -> Path:
    """`ROUNDS` rounds of the tiny experiment. To be read only."""
    return made_once(NAME, train(ROUNDS))


@pytest.fixture(scope="session")
def unpruned(made_once: Callable[[str, list[str]], Path]) -> Path:
    """The same rounds with every checkpoint kept: cut back to any stage, nothing before it is made again."""
    return made_once("unpruned", train(ROUNDS, name="unpruned", runtime__save_total_limit=9))


@pytest.fixture(scope="session")
def run_of(made_once: Callable[[str, list[str]], Path]) -> Callable[[str], Path]:
    """Runs of other recipes (`tests.recipe_runs.OTHERS`), two rounds each. To be read only.

    One is made when it is first asked for, in this process: ask before you patch anything.
    """
    return lambda recipe: made_once(tiny_name(recipe), train_tiny(recipe))


@pytest.fixture
def copied(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run that a test may change; the directory above it is its $CRL_RUNS."""
    target = tmp_path / "runs" / NAME
    shutil.copytree(finished, target)
    return target
