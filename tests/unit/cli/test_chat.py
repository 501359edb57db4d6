"""`crl chat`: a game is the recorded one, an answer is shown as it is sampled, and what guides it with the reason."""

from __future__ import annotations

import io
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from crl.policies.chat import ChatFormat
from crl.policies.embedders import embedder_digest
from crl.protocols import Sampled, StopReason
from crl.records import Evaluation
from crl.rounds.evaluate import WITH_BANK, WITHOUT_BANK
from crl.run.directory import RunDirectory
from crl.serve.watched import Stream, _Streamed
from tests.processes import PATIENCE_SECONDS, as_in_a_terminal
from tests.tiny_run import ROOT, ROUNDS, command, environment
from tests.unit.cli.conftest import Outcome
from tests.unit.policies.families import tokenizer_of
from tests.unit.recipes.played import Played, Services, experiment

Crl = Callable[..., Outcome]
ANSWER = re.compile(r"^« (.*)$", re.MULTILINE)


class Embedding(Services):
    """Their embedder is the true one: an agent compares its digest."""

    def model_digest(self, role: str) -> str:
        return embedder_digest("lexical") if role == "embedder" else super().model_digest(role)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Played:
    settings = {"method__families__0__groups": 2, "method__families__0__evaluation_seeds__count": 3}
    found = experiment(**settings)
    return Played(tmp_path_factory.mktemp("played"), found, 1, Embedding(found))


@pytest.fixture
def played(made: Played, monkeypatch: pytest.MonkeyPatch) -> Played:
    @contextmanager
    def services(run: RunDirectory) -> Iterator[Any]:
        yield made.services

    monkeypatch.setattr("crl.engine.services.services_here", services)
    monkeypatch.setattr(sys, "stdin", None)  # closed: a game reads nothing
    return made


def test_a_held_out_game_is_the_recorded_one_with_and_without_the_bank(played: Played, crl: Crl) -> None:
    rows = [row for row in played.rows(Evaluation, "evaluate", 1) if row.condition in (WITH_BANK, WITHOUT_BANK)]
    assert len(rows) == 6 and any(row.guided for row in rows) and any(row.success for row in rows)
    for row in rows:
        bank = () if row.condition == WITH_BANK else ("--no-bank",)
        said = crl("chat", played.run.path, "--seed", str(row.environment_seed), *bank).out
        assert f"seed {row.environment_seed}, {'without' if bank else 'with'} the bank of round 1" in said
        assert [each if each != "wait" else "" for each in ANSWER.findall(said)] == list(row.actions)
        assert ("-- solved in" in said) is row.success and f"in {row.turns} turn" in said
        shown = re.findall(r"^experience (\S+) \((.*)\):$", said, re.MULTILINE)
        assert [name for name, _ in shown] == list(row.entry_ids)
        assert ("(no experience guides it)" in said) is not row.guided
        assert ("similarity" in said and "shown" in said) is row.guided
        assert ("the same without the bank: crl chat" in said) is not bool(bank)


def test_games_of_consecutive_seeds(played: Played, crl: Crl) -> None:
    first = played.method.families[0].evaluation_seeds.start
    said = crl("chat", played.run.path, "--games", "3", "--no-bank").out
    assert re.findall(r"seed (\d+),", said) == [str(first + at) for at in range(3)]
    for words, told in (
        (("--games", "4"), f"held out: {first} to {first + 3}"), (("--seed", "3"), "seed 3 of lake is not held out"),
        (("--family", "sea"), "no task family 'sea'"), (("--text", "--seed", "3"), "choose games"),
        (("--round", "9"), "round 9"),
    ):  # fmt: skip
        refused = crl("chat", played.run.path, *words)
        assert refused.code == 2 and told in refused.err


def test_it_answers_what_is_typed(played: Played, crl: Crl, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(
        played.services._policies["actor"], "_answer", lambda text, random: read.append(text) or f"No. {len(read)}"
    )
    monkeypatch.setattr(sys, "stdin", io.StringIO("Where is the goal?\n\n\x1b[2J and now?\n"))
    done = crl("chat", played.run.path, "--text")
    assert done.code == 0 and ANSWER.findall(done.out) == ["No. 1", "No. 2"]
    assert "Where is the goal?" in read[0] and "and now?" not in read[0] and read[1].startswith(read[0])
    assert "No. 1" in read[1] and read[1].index("No. 1") < read[1].index("and now?")
    assert "\x1b" not in done.out and r"\x1b[2J" in done.out, "a terminal obeys no text"
    (shown,) = re.findall(r"^experience (\S+)", done.out, re.MULTILINE)
    assert shown and "Advice: " in read[0]
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    assert crl("chat", played.run.path, "--text").code == 0


def test_a_character_of_several_ids_is_shown_once_it_is_whole() -> None:
    chat = ChatFormat(tokenizer_of("qwen2_5"), "qwen2_5")
    ids = chat.answer("Hüpf 🙂 é!")

    class Stepped:
        def __init__(self) -> None:
            self.at = 0

        def begin(self, rows: Sequence[int], sampling: Any, answers: Any = None) -> None:
            self.at = 0

        def step(self) -> bool:
            self.at += 1
            return True

        def written(self, row: int) -> list[int]:
            return ids[: self.at]

        def ended(self) -> Mapping[int, Sampled]:
            done = self.at == len(ids)
            return {0: Sampled(list(ids), [0.0] * len(ids), StopReason.end_of_turn)} if done else {}

        def length(self, row: int) -> int:
            return 7

    class Watching:
        def __init__(self) -> None:
            self.pieces: list[str] = []

        def writes(self, text: str) -> None:
            self.pieces.append(text)

        def answered(self) -> None:
            self.pieces.append("|")

    watching: Any = Watching()
    session: Any = _Streamed(Stepped(), chat, watching)  # type: ignore[arg-type]
    session.begin([0], None)
    assert session.length(0) == 7
    assert session.advance()[0].token_ids == ids
    assert "".join(watching.pieces) == "Hüpf 🙂 é!|"
    assert "🙂" in watching.pieces and not any("\ufffd" in each for each in watching.pieces)
    assert len([each for each in watching.pieces if each]) > 5, "it is a stream"


def test_a_text_that_turns_out_otherwise_is_written_at_the_end() -> None:
    pieces: list[str] = []
    stream = Stream(pieces.append)
    for text in ("ab", "abc", "x"):
        stream.show(text)
    stream.show("xyz", last=True)
    assert pieces == ["ab", "c", "\nxyz"]


def process(finished: Path, tmp_path: Path, *words: str, **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command("chat", str(finished), *words), cwd=ROOT, env=environment(tmp_path / "runs"), text=True,
        stderr=subprocess.PIPE, start_new_session=True, **more,
    )  # fmt: skip


@pytest.mark.slow
def test_a_trained_agent_plays_the_recorded_games(finished: Path, crl: Crl) -> None:
    run = RunDirectory.open(finished)
    for row in run.read(ROUNDS, "evaluate", Evaluation).to_pylist():
        if row["condition"] == "random":
            continue
        bank = () if row["condition"] == WITH_BANK else ("--no-bank",)
        said = crl("chat", finished, "--round", str(ROUNDS), "--seed", str(row["environment_seed"]), *bank)
        assert said.code == 0, said.err
        said_actions = [each.split()[-1] if each.split() else "" for each in ANSWER.findall(said.out)]
        assert [each for each in row["actions"] if each] == [
            said_action for said_action, action in zip(said_actions, row["actions"], strict=True) if action
        ]
        assert ("-- solved in" in said.out) is row["success"]


@pytest.mark.slow
def test_it_ends_without_a_word_where_nobody_listens_or_types(finished: Path, tmp_path: Path) -> None:
    gone = process(finished, tmp_path, "--games", "2", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    assert gone.stdout is not None and gone.stderr is not None
    assert gone.stdout.readline().startswith("-- lake")
    gone.stdout.close()
    assert gone.stderr.read() == "" and gone.wait(PATIENCE_SECONDS) in (0, 1)
    closed = command("chat", str(finished), "--text")
    for words in ("0<&-", "1>&-", "0<&- 1>&- 2>&-"):
        done = subprocess.run(
            ["bash", "-c", f'"$@" {words}', "-", *closed], cwd=ROOT, env=environment(tmp_path / "runs"),
            stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr and done.returncode == 0, done.stderr


@pytest.mark.slow
def test_ctrl_c_ends_it(finished: Path, tmp_path: Path) -> None:
    with as_in_a_terminal():
        typing = process(finished, tmp_path, "--text", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert typing.stdin is not None and typing.stdout is not None and typing.stderr is not None
    typing.stdin.write("hello\n")
    typing.stdin.flush()
    assert next(line for line in typing.stdout if line.startswith("« "))
    typing.send_signal(signal.SIGINT)
    assert typing.wait(PATIENCE_SECONDS) == 130 and "Traceback" not in typing.stderr.read()
