"""Every command of `crl` on a file system that is read-only, and on a full one: it works, or says once why not.

The commands run in this process; models are stood in for. A command without a line in the table fails a test.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.main import get_command

from crl.cli import app, main
from crl.config import Runtime
from crl.engine.driver import Driver
from crl.errors import ApprovalPending
from crl.records import Evaluation, rows_of
from crl.report.bank import entries_after
from crl.report.data_docs import SITE
from crl.rounds.evaluate import Evaluated
from crl.run.cache import cached
from crl.run.directory import RunDirectory
from crl.run.journal import JOURNAL
from crl.run.validations import Verdict, keep_verdict
from crl.serve.export import export_agent
from tests.faults.disks import fill, small_disk, turn_read_only
from tests.marks import sampled
from tests.recipe_runs import HERE
from tests.study.studies import NAME as STUDY
from tests.study.studies import write as write_study
from tests.tiny_run import CONFIG, NAME, ROOT, ROUNDS, options
from tests.unit.engine.approval_recipe import NAME as WAITING
from tests.unit.engine.approval_recipe import approved_experiment
from tests.unit.rollout.fakes import ScriptedPolicy

Ending = tuple[int, str]
"""Exit code, and what is in the message."""
WORKS: Ending = (0, "")
REFUSED: Ending = (2, "cannot be written: Read-only file system")
FULL: Ending = (1, "no space was left on the disk")
NO_ROOM: Ending = (2, "GB are free")
NOT_KEPT: Ending = (0, "the rows were not kept: ")
"""What was evaluated is shown all the same."""
PAGE = "a page\n" * 2000


@dataclass(frozen=True)
class Case:
    """A command line, and how it ends on a disk that is read-only and on a full one."""

    words: str
    read_only: Ending = WORKS
    full: Ending = WORKS

    @property
    def command(self) -> tuple[str, ...]:
        """What the command is called."""
        words = self.words.split()
        return tuple(words[: 2 if words[0] in ("bank", "checks", "env") else 1])


WRITERS = [
    Case("catalog {run}", REFUSED, FULL),
    Case("report {run} --episodes 0", REFUSED, FULL),
    Case("checks docs {run}", REFUSED, FULL),
    Case("export {run} --episodes --to {disk}/episodes", REFUSED, FULL),
    Case("bank export {run} --to {disk}/bank", REFUSED, FULL),
    Case("bank export {run} --to {disk}/bank --format jsonl", REFUSED, FULL),
    Case("bank export {run} --to {disk}/bank --format huggingface", REFUSED, FULL),
    Case("bank export {run} --to {disk}/bank --format skills", REFUSED, FULL),
    Case("bank import {fresh} {bank} --runs {disk}", REFUSED, FULL),
    Case("export {run} --to {disk}/agent", REFUSED, FULL),
]
"""What writes more than a page of memory, and needs no model for it."""
CASES = [
    *WRITERS,
    Case("train {config} --no-prefect", REFUSED, NO_ROOM),
    Case("bank build tiny --from {chats} --to {disk}/built", REFUSED, NO_ROOM),
    Case("resume {run}", REFUSED, FULL),
    Case("resume {run} --rounds 1", REFUSED, FULL),
    Case("redo {run} --from 0002/collect --yes", REFUSED, FULL),
    Case("fork {run} --round 1 --name other", REFUSED, FULL),
    Case("warm-start {warm}", REFUSED, FULL),
    Case("compare {study} --runs {disk}", REFUSED, NO_ROOM),
    Case("compare {study} --runs {disk} --table-only", REFUSED, FULL),
    Case("approve {waiting}", REFUSED, FULL),
    Case("approve {waiting} --reject-all --person Ada", REFUSED, FULL),
    Case("approve {waiting} --show"),
    Case("evaluate {run} --out {disk}/rows.parquet", (2, "cannot be written: Read-only file system"), FULL),
    Case("evaluate {run} --out {elsewhere}/rows.parquet", NOT_KEPT, NOT_KEPT),
    Case("evaluate {run}", NOT_KEPT, NOT_KEPT),
    Case("evaluate {agent}"),
    Case("evaluate {agent} --out {disk}/rows.parquet", (2, "cannot be written: Read-only file system"), FULL),
    Case("chat {run} --text"),
    Case("env list"),
    Case("init {disk}/new --model tiny --environment frozenlake", REFUSED, FULL),
    Case("init {elsewhere}/new --model tiny --environment frozenlake"),
    Case("init {disk}/new --from tiny", REFUSED, FULL),
    Case("init {elsewhere}/new"),
    Case("list"),
    Case("list --experiments"),
    Case("ui"),
    Case("env check frozenlake --episodes 2 --longest 2"),
    Case("env play frozenlake --record {elsewhere}/games.jsonl"),
    Case("env play frozenlake --record {disk}/games.jsonl", REFUSED, FULL),
    Case(
        "env solvable {config_file} --set method.roles.actor.sampling.constrain=actions --tries 4 --seeds 6 --below 1 "
        "--to {disk}/tasks.yaml",
        REFUSED,
        FULL,
    ),
    Case("table {run}"),
    Case("report {run} --episodes 0 --out {elsewhere}/page.html"),
    Case("bank export {run} --to {elsewhere}/bank"),
    Case("export {run} --best --to {elsewhere}/agent"),
    Case("bank import {fresh} {run} --runs {elsewhere}"),
    Case("bank show {run}"),
    Case("bank diff {run} 1"),
    Case("bank why {run} {entry}"),
    Case("bank history {run} {entry}"),
    Case("bank search {run} lake"),
    Case("bank search {run} lake --lexical"),
    Case("bank serve {run}"),
    Case("serve {run} --port 0"),
    Case("serve {run} --port 0 --record {elsewhere}/served"),
    Case("serve {run} --port 0 --record {disk}/served", REFUSED, FULL),
    Case("status {run}"),
    Case("stage {run} 1 plan"),
    Case("stage {run} 1 plan --into {elsewhere}/rows"),
    Case("verify {run}"),
    Case("mend {run}"),  # of an intact run: there is nothing to write
    Case('sql {run} "SELECT count(*) AS games FROM episodes"'),
    Case("checks list"),
    Case("checks show episodes"),
    Case("doctor", (2, "not ready: runs")),
    Case("doctor {config_file}", (2, "not ready: runs"), (2, "not ready: free disk")),
]


def _commands(found: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    inner = getattr(found, "commands", {})
    if not inner:
        yield name
    for word, each in inner.items():
        yield from _commands(each, (*name, word))


def test_every_command_has_a_line() -> None:
    assert {case.command for case in CASES} == set(_commands(get_command(app)))


@pytest.fixture(scope="module")
def sources(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run, one that waits for a person, an exported bank: what is copied to every disk."""
    folder = tmp_path_factory.mktemp("sources")
    shutil.copytree(finished, folder / NAME)
    run = RunDirectory.create_or_open(approved_experiment(), folder)
    with Driver(run, Runtime()) as driver:
        driver.set_target(1)
        with pytest.raises(ApprovalPending):
            driver.run_rounds(1)
    with pytest.raises(SystemExit):
        main(["bank", "export", str(finished), "--to", str(folder / "exported")])
    export_agent(finished, folder / "agent")
    return folder


@contextmanager
def _disk(sources: Path, folder: Path) -> Iterator[Path]:
    """A small file system with a copy of everything, and places that hold nothing but a lock once they are used."""
    with small_disk(folder / "disk", 48 * 2**20) as place:
        for name in (NAME, WAITING):
            shutil.copytree(sources / name, place / name)
        for name in (STUDY, "models/warm"):
            (place / name).mkdir(parents=True)
        yield place


@pytest.fixture(scope="module")
def read_only(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with _disk(sources, tmp_path_factory.mktemp("read-only")) as place:
        turn_read_only(place)
        yield place


@pytest.fixture(scope="module")
def full(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with _disk(sources, tmp_path_factory.mktemp("full")) as place:
        fill(place)
        yield place


@pytest.fixture
def crl(
    sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[str, Path], tuple[int, str]]:
    """Run a command line of the table on a disk: (exit code, what it said on standard error)."""
    recorded = RunDirectory.open(sources / NAME)
    rows = rows_of(Evaluation, recorded.read(ROUNDS, "evaluate", Evaluation))
    monkeypatch.chdir(ROOT)
    evaluated = Evaluated(ROUNDS, rows, {})
    monkeypatch.setattr("crl.engine.evaluation.evaluate_round", lambda run, number, choice: evaluated)
    monkeypatch.setattr("crl.serve.held_out.evaluate_folder", lambda agent, choice: (evaluated, None))
    monkeypatch.setattr("crl.engine.services.prepare_environment", lambda threads: {})
    monkeypatch.setattr("crl.lab.warm.make._make", _make)
    monkeypatch.setitem(sys.modules, "crl.validation.round", SimpleNamespace(validate_rounds=_validate_rounds))
    policy = ScriptedPolicy(lambda row, turn: ("up", True))
    monkeypatch.setattr("crl.serve.source.TrainedAgent.policy", lambda agent: policy)
    monkeypatch.setattr("crl.serve.own_model.own_model", lambda *agent: SimpleNamespace(submit=None, run=bool))
    monkeypatch.setattr("flows.ui.DevServer.run", lambda server: None)
    monkeypatch.setattr("mcp.server.MCPServer.run", lambda server, transport: None)
    monkeypatch.setattr("crl.cli.doctor._gpu", lambda: ("not asked", False, ""))

    def run(words: str, disk: Path) -> tuple[int, str]:
        monkeypatch.setenv("CRL_RUNS", str(disk))
        monkeypatch.setattr("sys.stdin", io.StringIO("up\n" * 8))
        if words.startswith("warm-start"):
            monkeypatch.setenv("CRL_MODELS", str(disk / "models"))
        if "{elsewhere}" not in words:  # a page that is not written is not worth two seconds
            monkeypatch.setattr("crl.report.page.render", lambda *run, **options: PAGE)
        if words.startswith("bank build") and "bank_from_chats" not in HERE:
            pytest.skip("its recipe is a guest that is not here")
        places = {
            "disk": disk, "run": disk / NAME, "waiting": disk / WAITING, "elsewhere": tmp_path,
            "bank": sources / "exported", "entry": entries_after(sources / NAME, limit=1)[0].entry_id,
            "agent": sources / "agent", "study": write_study(tmp_path), "warm": "conf/warm/realms.yaml",
            "config_file": CONFIG, "config": shlex.join([str(CONFIG), *options(runtime__min_free_gigabytes=0)]),
            "fresh": shlex.join([str(CONFIG), *options(name="fresh")]), "chats": tmp_path / "chats.jsonl",
        }  # fmt: skip
        places["chats"].write_text('[{"role": "assistant", "content": "left"}]')
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(shlex.split(words.format_map(places)))
        assert isinstance(ended.value.code, int)
        return ended.value.code, capsys.readouterr().err

    return run


Crl = Callable[[str, Path], tuple[int, str]]


def _make(settings: Any, directory: Path, say: Any) -> None:
    """In place of minutes of work: a model is written."""
    save_file({"weights": np.zeros(10**6, np.float32)}, directory / "model.safetensors")


def _validate_rounds(run_path: Path, *more: Any) -> list[Verdict]:
    """In place of Great Expectations, which takes seconds to import."""
    verdict = Verdict(round=ROUNDS, outcome="passed", stages={})
    keep_verdict(run_path, verdict)

    def write(directory: Path) -> None:
        (directory / "index.html").write_text(PAGE)

    cached(run_path, SITE, write, again=True)
    return [verdict]


def _contents(disk: Path) -> dict[str, str]:
    """Everything on a disk but locks, and the journal: its last block has room for what was tried."""
    return {
        str(path.relative_to(disk)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "a directory"
        for path in disk.rglob("*")
        if not path.name.endswith(".lock") and path.name not in ("ballast", JOURNAL)
    }


def _check(ending: Ending, code: int, said: str) -> None:
    expected, words = ending
    assert code == expected, said
    if expected == 0:
        assert said.startswith(words) if words else said == ""
        return
    assert said.startswith("crl: ") and said.count("crl: ") == 1 and len(said.splitlines()) < 8, "one message"
    assert words in said and "What to do: " in said and "Traceback" not in said, said


@pytest.mark.parametrize("case", sampled(CASES, 5), ids=lambda case: case.words)
def test_on_a_read_only_disk(case: Case, read_only: Path, crl: Crl) -> None:
    _check(case.read_only, *crl(case.words, read_only))


@pytest.mark.parametrize("case", sampled(CASES, 5), ids=lambda case: case.words)
def test_on_a_full_disk(case: Case, full: Path, crl: Crl) -> None:
    before = _contents(full)
    _check(case.full, *crl(case.words, full))
    assert _contents(full) == before


@pytest.mark.parametrize("case", sampled(WRITERS, 5), ids=lambda case: case.words)
def test_a_disk_that_fills_up_meanwhile(case: Case, full: Path, crl: Crl) -> None:
    """What is there stays as it was, nothing is left over, and with room again the same command works."""
    before = _contents(full)
    ballast = fill(full, leave=os.statvfs(full).f_frsize)
    try:
        _check(FULL, *crl(case.words, full))
        left = {name for name, content in _contents(full).items() if before.get(name) != content}
        assert not left, left
        ballast.unlink()
        _check(WORKS, *crl(case.words, full))
    finally:
        for name in ("bank", "fresh"):
            shutil.rmtree(full / name, ignore_errors=True)
        fill(full)


@pytest.mark.parametrize(
    "words", ["status {run}", "bank show {run} --format json", "sql {run} 'FROM turns' --format csv"]
)
def test_output_into_a_full_disk(words: str, sources: Path, monkeypatch: pytest.MonkeyPatch, crl: Crl) -> None:
    with Path("/dev/full").open("w", encoding="utf-8") as output:
        monkeypatch.setattr("sys.stdout", output)
        code, said = crl(words, sources)
        monkeypatch.undo()
    _check(FULL, code, said)
