"""A bank from chats, built by the stages themselves with a model that is told what to say, and used by a run."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from crl.audit.verify import verify
from crl.cli import main
from crl.config import Experiment
from crl.config.load import parse_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.errors import BadInput
from crl.recipes.bank_from_chats.chats import Chat
from crl.records import BankEvent, Distillation, Episode, Evaluation, Generation, ImportedEntry, rows_of
from crl.report.bank import entries_after
from crl.report.views import connect
from crl.report.why import why
from crl.rounds.recipe import recipe_of
from crl.run.data_files import digest_of, with_data_digests
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from crl.transfer.folder import read_folder, write_folder
from crl.transfer.gather import gather
from crl.transfer.take import take
from tests.processes import wait_until
from tests.tiny_run import CONFIG, NAME, ROOT, ROUNDS, command, crl, environment
from tests.unit.recipes import played
from tests.unit.recipes.played import Answer, Played, Policy, Services

PROMPT = {"system": "Write advice.", "first": "{goal}\n{trajectory}\nResult: {outcome}"}
TEXTS = ("win", "fine", "vague")


def records(count: int = 20) -> list[dict[str, Any]]:
    return [
        {
            "messages": [{"role": "user", "content": f"task {number}"}, {"role": "assistant", "content": "done"}],
            "reward": number % 2,
        }
        for number in range(count)
    ]


def experiment(folder: Path, lines: list[dict[str, Any]], **changes: Any) -> Experiment:
    path = folder / "chats.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    environment = {"kind": "crl.recipes.bank_from_chats.chats:ChatsConfig", "data": str(path)}
    data = {
        "name": "built",
        "method": {
            "families": [{"name": "lake", "environment": environment}],
            "roles": {"extractor": {"model": "tiny"}},
            "recipe": {"kind": "bank_from_chats", "embedder_name": "lexical", "distill": {"batch": 8}},
            "prompts": {"distill": PROMPT},
        },
    }
    return with_data_digests(parse_experiment(data, changes, base=folder, where="test"))


def told(say: Answer) -> Callable[[Experiment], Services]:
    def services(made: Experiment) -> Services:
        found = Services(made)
        found._policies["extractor"] = Policy(say)
        return found

    return services


def write(read: str, generator: np.random.Generator) -> str:
    """One of :data:`TEXTS`; of the last task nothing that is in form."""
    return "hello" if "task 19" in read else f"ADD: {generator.choice(TEXTS)}"


def build(root: Path, made: Experiment, say: Answer = write) -> Played:
    return Played(root, made, 1, told(say)(made))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Played:
    folder = tmp_path_factory.mktemp("built")
    return build(folder / "runs", experiment(folder, [*records(), {"messages": "?"}]))


def test_chats_become_a_bank_that_every_reader_reads(built: Played) -> None:
    assert [stage for _, stage in played.one_by_one(built.recipe, built.method, 1)] == [
        "initialize", "read_chats", "distill", "consolidate",
    ]  # fmt: skip
    outputs = built.rows(Distillation, "distill", 1)
    assert [row.verdict for row in outputs] == ["add"] * 19 + ["malformed"], "one output per chat that is used"
    entries = entries_after(built.run.path)
    assert sorted(entry.text for entry in entries) == sorted(TEXTS)
    rejected = [row.reason for row in built.rows(BankEvent, "consolidate", 1) if row.kind == "rejected"]
    assert rejected == ["duplicate"] * 16
    prompts = [row.prompt for row in built.rows(Generation, "distill", 1)]
    assert "task 1\nAction: done" in prompts[1] and prompts[1].endswith("Result: success")
    assert prompts[0].endswith("Result: failure")
    (version,) = why(built.run.path, entries[0].entry_id).versions
    assert version.writing is not None and version.writing.checkpoint == "tiny" and version.episodes
    assert verify(built.run.path) == []
    with connect(built.run.path) as connection:
        query = (
            "SELECT c.location, c.reward FROM bank_at(1) b, chats c "
            f"WHERE b.entry_id = '{entries[0].entry_id}' AND list_contains(b.episode_ids, c.chat_id)"
        )
        assert connection.execute(query).fetchall() == [("chats.jsonl, line 1", 0.0)]
        assert connection.execute("SELECT count(*) FROM chats WHERE reason_code = 'no_messages'").fetchone() == (1,)


def test_a_build_that_was_killed_asks_nothing_twice(tmp_path: Path, built: Played) -> None:
    asked: list[str] = []

    def dies(read: str, generator: np.random.Generator) -> str:
        asked.append(read)
        if len(asked) == 12:
            raise KeyboardInterrupt
        return write(read, generator)

    made = experiment(tmp_path, [*records(), {"messages": "?"}])
    with pytest.raises(KeyboardInterrupt):
        build(tmp_path, made, dies)
    run = RunDirectory.open(tmp_path / "built")
    recipe, services = recipe_of(run.method), told(dies)(made)
    with Lease.acquire(run.path, seconds=600) as lease:
        for stage in ("distill", "consolidate"):
            execute_stage(run, recipe, 1, stage, attempt=Attempt(token=lease.token), services=services)
    # The first batch of eight is kept; those of the second that came before the end are asked again.
    assert len(asked) == 12 + 12
    for row_type, stage in ((Chat, "read_chats"), (Generation, "distill"), (BankEvent, "consolidate")):
        assert rows_of(row_type, run.read(1, stage, row_type)) == built.rows(row_type, stage, 1), "by the seed alone"


@pytest.mark.slow
def test_a_run_begins_with_it_and_is_guided_by_it(built: Played, tmp_path: Path) -> None:
    source = gather(built.run.path, None)
    (family,) = built.method.families
    assert source.provenance["data"] == {"lake": family.data_digests}
    assert list(source.provenance["data"]["lake"].values()) == [digest_of(family.environment.path)]
    assert source.provenance["models"]["extractor"]["name"] == "tiny"
    made = played.experiment()
    run = RunDirectory.create_or_open(made, tmp_path)
    taken = take(run, recipe_of(run.method), source)
    assert taken.entries == {"lake": 3} and not taken.left_out
    trained = Played(tmp_path, made, 1)
    imported = trained.rows(ImportedEntry, "initialize", 0)
    assert {row.source_experiment for row in imported} == {"built"}
    episodes = trained.rows(Episode, "collect", 1)
    texts = {text for episode in episodes if episode.guided for text in episode.experiences}
    assert texts <= set(TEXTS) and "win" in texts
    assert verify(run.path) == []
    recorded = run.manifest(0, "initialize").provenance["import"]["source"]
    assert recorded["data"] == source.provenance["data"], "whose chats, after the way over two runs"
    story = why(run.path, imported[0].entry_id)
    assert story.versions[0].imported is not None and "built" in str(story.versions[0].remark)


@pytest.mark.slow
def test_an_export_keeps_where_it_comes_from(built: Played, tmp_path: Path) -> None:
    write_folder(gather(built.run.path, None), tmp_path / "bank", "jsonl")
    read = read_folder(tmp_path / "bank").provenance
    assert {name: read[name] for name in ("data", "models")} == {
        name: value for name, value in gather(built.run.path, None).provenance.items() if name in ("data", "models")
    }


def test_a_file_that_changes_is_not_read_again(tmp_path: Path) -> None:
    made = experiment(tmp_path, records())
    run = RunDirectory.create_or_open(made, tmp_path)
    (tmp_path / "chats.jsonl").write_text(json.dumps(records(1)[0]))
    with Lease.acquire(run.path, seconds=600) as lease:
        for number, stage in ((0, "initialize"), (1, "read_chats")):
            attempt = Attempt(token=lease.token)
            if number == 0:
                execute_stage(run, recipe_of(run.method), 0, stage, attempt=attempt, services=Services(made))
                continue
            with pytest.raises(BadInput, match="has changed since the run was made"):
                execute_stage(run, recipe_of(run.method), 1, stage, attempt=attempt, services=Services(made))


def test_a_chat_that_is_longer_than_the_context_is_shortened_in_its_middle(tmp_path: Path) -> None:
    turns = [{"role": role, "content": f"{role} {number} " + "long " * 40} for number in range(400)
             for role in ("user", "assistant")]  # fmt: skip
    whole = [{"role": "user", "content": "x" * 100_000}, {"role": "assistant", "content": "done"}]
    system = [{"role": "system", "content": "x" * 20_000}, *records(1)[0]["messages"]]
    made = experiment(tmp_path, [{"messages": each} for each in (turns, whole, system)])
    outputs = build(tmp_path, made).rows(Distillation, "distill", 1)
    assert [row.reason_code for row in outputs] == ["ok", "ok", "prompt_too_long"]
    assert 0 < (outputs[0].turns_shown or 0) < 400 and outputs[1].turns_shown == 0


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="near-duplicates"):
        experiment(tmp_path, records(), **{"method.recipe.bank.duplicates": "near"})
    with pytest.raises(BadInput, match="this recipe reads chats"):
        experiment(tmp_path, records(), **{"method.families.0.environment": {"kind": "frozenlake"}})
    config = experiment(tmp_path, records()).method.families[0].environment
    with pytest.raises(BadInput, match="chats are read, not played"):
        config.make().step_many({0: "x"})


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--from {folder}/none.jsonl", "there is no file"),
        ("--from {folder}/empty.jsonl", "it is empty"),
        ("--from {folder}/chats.jsonl --prompts none", "there is no prompt file 'none'"),
        ("--from {folder}/chats.jsonl --to {folder}/Upper", "name"),
        ("--from {folder}/chats.jsonl --set method.recipe.distill.batches=3", "unknown key"),
    ],
)  # fmt: skip
def test_the_command_refuses_before_it_begins(
    tmp_path: Path, words: str, told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRL_RUNS", str(tmp_path / "runs"))
    (tmp_path / "empty.jsonl").write_text("\n")
    experiment(tmp_path, records(1))
    with pytest.raises(SystemExit) as ended:
        main(["bank", "build", "tiny", *words.format(folder=tmp_path).split()])
    assert ended.value.code == 2 and told in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


BLOCKS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.slow
def test_the_commands_of_the_pages_run_and_a_killed_build_goes_on(finished: Path, tmp_path: Path) -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("environments.md", "bank_from_chats.md")]
    answer = pages[0].partition("### Chats, and no environment")[2].partition("## What there is")[0]
    made, imported, prepared = BLOCKS.findall(answer)[0].splitlines()
    used = BLOCKS.findall(pages[1])[1].splitlines()
    assert used[1] == prepared and used[0].split()[:4] == imported.split()[:4]
    runs = tmp_path / "runs"
    runs.mkdir()
    shutil.copytree(finished, runs / NAME)
    made = f"{made} --prompts tiny --embedder lexical --set method.recipe.distill.batch=4"
    experiment(tmp_path, records(24))
    places = {
        "Qwen/Qwen3-4B": f"run:{NAME}@{ROUNDS}/extractor", "--from chats.jsonl": f"--from {tmp_path / 'chats.jsonl'}",
        "runs/chats-bank": str(runs / "chats-bank"),
    }  # fmt: skip

    def words(line: str) -> list[str]:
        for name, place in places.items():
            line = line.replace(name, place)
        return shlex.split(line)[1:]

    process = subprocess.Popen(command(*words(made)), cwd=ROOT, env=environment(runs), stdout=subprocess.DEVNULL,
                               start_new_session=True)  # fmt: skip
    parts = runs / "chats-bank" / "rounds" / "0001"
    try:
        wait_until(lambda: any(parts.glob(".parts*/*")), "a batch is written", seconds=300)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    typed = crl(runs, *words(made))
    assert "leaked" not in typed.stderr, "nothing of DuckDB's is printed as the process ends"
    said = typed.stdout
    assert "24 chats of" in said and "experiences from 24 chats" in said
    assert entries_after(runs / "chats-bank")
    assert verify(runs / "chats-bank") == []
    assert crl(runs, *words(made)).stdout.splitlines()[-1] == said.splitlines()[-1], "typed again, it is there"
    changes = ["--set", "name=begun", "--set", "method.recipe.warm_start=null"]
    target = [str(CONFIG), *changes]
    crl(runs, *words(imported.replace("conf/NAME.yaml", str(CONFIG))), *changes)
    shown = crl(runs, "train", *target, "--rounds", "0", "--no-prefect").stdout
    assert "begun" in shown
    run = RunDirectory.open(runs / "begun")
    assert run.rounds() == [0]
    rows = rows_of(Evaluation, run.read(0, "evaluate", Evaluation))
    assert any(row.guided for row in rows if row.condition == "with_bank")
    evaluated = crl(runs, "evaluate", "begun", "--round", "0", "--episodes", "2").stdout
    assert "with bank" in evaluated
    crl(runs, "train", *target, "--rounds", "1", "--no-prefect")
    guided = [row for row in rows_of(Episode, run.read(1, "collect", Episode)) if row.guided]
    assert guided and all(entry.startswith("chats-bank-r0001-x-d-chats-") for row in guided for entry in row.entry_ids)
    assert verify(run.path) == []
