"""`crl export --episodes`: what is chosen, what a row says, what is left out. TRL takes it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from crl.cli import main
from crl.errors import BadInput
from crl.policies import load_chat, resolve_model
from crl.policies.chat import ChatFormat
from crl.records import Task
from crl.rollout.live import EpisodeSlot, Guide
from crl.rollout.play import PlayedEpisode, play_wave
from crl.serve.episodes import Written, write_episodes
from tests.tiny_run import ROOT
from tests.unit.report.scripted import ScriptedRun, experiment
from tests.unit.rollout.fakes import Corridor
from tests.unit.serve.played_chats import SAMPLING, Policy

SAID = (("right", "right"), ("right", "left"), ("left",), ("right", "right"), ("left",), ("right", "left"))
"""What six members of a group say: two win. The last two are guided; the last but one's environment breaks."""


def played(chat: ChatFormat, run: ScriptedRun) -> list[PlayedEpisode]:
    def slot(member: int) -> EpisodeSlot:
        task = Task(
            episode_id=f"r0001-lake-g0000-m{member:03d}", round=1, family="lake", group=0, member=member,
            environment_seed=2, stream="guided" if member > 3 else "free", goal="Go {right}.",
            first_observation="2 to go {x}", query="q",
        )  # fmt: skip
        return EpisodeSlot(task, (Guide("e1", "0" * 64, "Hüpf!"),) if member > 3 else ())

    return play_wave(
        Policy(chat, lambda row, turn: SAID[row][turn]), Corridor(breaks=(4, 0)), [slot(at) for at in range(6)],
        method=run.method, sampling=SAMPLING, weights_digest="0" * 64,
        seed_of=lambda name: np.random.SeedSequence(1), stage="collect",
    )  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A round of one group that is really played, with the chat of the tiny model."""
    with ScriptedRun(tmp_path_factory.mktemp("runs"), experiment("played")) as made:
        chat = load_chat(resolve_model("tiny"), made.method.role("actor"))
        assert isinstance(chat, ChatFormat)
        found = played(chat, made)
        made.initialize()
        demonstration = dataclasses.replace(found[0].episode, episode_id="shown", round=0)
        made._write(0, "warm_start_actor", [demonstration])
        made._write(
            1, "collect", [each.episode for each in found], [turn for each in found for turn in each.turns],
            [row for each in found for row in each.generations],
        )  # fmt: skip
        return made.path


def export(run: Path, to: Path, format: Any = "messages", where: str | None = None) -> tuple[Written, list[Any]]:
    written = write_episodes(run, to, format, where, seconds=60, gigabytes=4)
    return written, [json.loads(line) for line in (to / "data/train.jsonl").read_text().splitlines()]


Made = tuple[Path, Written, list[Any]]


@pytest.fixture(scope="module")
def messages(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    to = tmp_path_factory.mktemp("messages") / "out"
    return to, *export(run, to)


@pytest.fixture(scope="module")
def preference(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    to = tmp_path_factory.mktemp("preference") / "out"
    return to, *export(run, to, "preference")


def test_every_episode_that_was_played_is_a_row(messages: Made) -> None:
    out, written, rows = messages
    assert written == Written(6, 5, {"error: environment_KeyError": 1})
    assert [row["member"] for row in rows] == [0, 1, 2, 3, 5] and {row["round"] for row in rows} == {1}
    assert [[m["content"] for m in row["messages"] if m["role"] == "assistant"][-2:] for row in rows[:2]] == [
        ["right", "right"], ["right", "left"],
    ]  # fmt: skip
    first, guided = rows[0], rows[4]
    assert (first["success"], first["reward"], first["stop_reason"], first["stream"]) == (True, 1.0, "success", "free")
    assert (first["sequence"], first["sequences"], first["entry_ids"]) == (0, 1, [])
    assert (guided["guided"], guided["entry_ids"]) == (True, ["e1"])
    assert "Hüpf!" in guided["messages"][guided["prompt_messages"] - 1]["content"]
    provenance = json.loads((out / "provenance.json").read_text())
    content = (out / "data/train.jsonl").read_bytes()
    assert provenance["files"]["data/train.jsonl"] == {"sha256": hashlib.sha256(content).hexdigest(), "rows": 5}
    assert list(provenance["stages"]) == ["0001/collect"], "round 0 has demonstrations"
    assert provenance["left_out"] == written.left_out
    card = (out / "README.md").read_text()
    assert yaml.safe_load(card.split("---\n")[1])["configs"][0]["data_files"][0]["path"] == "data/train.jsonl"
    assert r"environment\_KeyError 1" in card and "all episodes" in card


def test_pairs_are_of_one_first_prompt_and_share_what_both_begin_with(preference: Made) -> None:
    _, written, rows = preference
    assert written.left_out == {"error: environment_KeyError": 1, "no_partner": 1}, "the guided one lost alone"
    pairs = [(int(row["chosen_episode_id"][-1]), int(row["rejected_episode_id"][-1])) for row in rows]
    assert pairs == [(0, 1), (3, 2)]
    for row, chosen, rejected in zip(rows, (1, 3), (1, 1), strict=True):
        assert row["prompt"][-1]["role"] == "user" and row["chosen"][0]["role"] == "assistant"
        assert (len(row["chosen"]), len(row["rejected"])) == (chosen, rejected)
        assert (row["chosen_success"], row["rejected_success"]) == (True, False)
    assert [row["content"] for row in (rows[0]["chosen"][0], rows[0]["rejected"][0])] == ["right", "left"]
    assert len(rows[0]["prompt"]) == len(rows[1]["prompt"]) + 2, "they say the same first"


@pytest.mark.slow
def test_a_condition_chooses_and_cannot_do_more(run: Path, tmp_path: Path) -> None:
    assert export(run, tmp_path / "a", where="success OR round = 0 -- and no more")[0].episodes == 2
    assert "`success OR round = 0 -- and no more`" in (tmp_path / "a/README.md").read_text()
    assert export(run, tmp_path / "b", where="reward = 0 AND NOT guided")[0].rows == 2
    refused = {
        "no episode is chosen": "false",
        "nosuch": "nosuch = 1",
        "read_csv": "episode_id IN (SELECT column0 FROM read_csv('/etc/passwd'))",
        "took longer than 2 s": "(SELECT count(*) FROM range(1000000) a, range(1000000) b) > 0",
    }
    for told, where in refused.items():
        with pytest.raises(BadInput, match=told):
            seconds = 2 if "longer" in told else 60
            write_episodes(run, tmp_path / "c", "messages", where, seconds=seconds, gigabytes=4)
    for where in ("true); COPY episodes TO '/tmp/x.csv'; SELECT (1", "true; DROP TABLE x"):
        with pytest.raises(BadInput):
            write_episodes(run, tmp_path / "c", "messages", where, seconds=60, gigabytes=4)
    with pytest.raises(BadInput, match=r"of 1 episodes none is left to write.*environment_KeyError"):
        export(run, tmp_path / "c", where="error IS NOT NULL")
    with pytest.raises(BadInput, match="of 2 episodes none is left"):
        export(run, tmp_path / "c", "preference", "success")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "b"], "whole or not at all"


def test_equal_exports_are_equal_byte_by_byte(run: Path, messages: Made, tmp_path: Path) -> None:
    export(run, tmp_path / "out")
    files = [path.relative_to(messages[0]) for path in messages[0].rglob("*") if path.is_file()]
    assert len(files) == 3
    assert all((tmp_path / "out" / each).read_bytes() == (messages[0] / each).read_bytes() for each in files)


@pytest.mark.slow
def test_the_command(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def crl(*more: str) -> tuple[int, str]:
        with pytest.raises(SystemExit) as ended:
            main(["export", str(run), "--episodes", "--to", str(tmp_path / "out"), *more])
        found = capsys.readouterr()
        return int(ended.value.code or 0), found.out + found.err

    code, said = crl("--where", "nosuch = 1")
    assert code == 2 and "nosuch" in said and list(tmp_path.iterdir()) == []
    code, said = crl("--where", "round = 1", "--format", "preference")
    assert code == 0 and "2 pairs of 6 episodes" in said and "left out: 1 (no_partner)" in said and "README.md" in said
    code, said = crl()
    assert code == 2 and "already exists" in said


TRAINED = """
import sys, torch
from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
format, folder, model, out = sys.argv[1:]
torch.manual_seed(0)
rows = load_dataset(folder, split="train")
more = dict(output_dir=out, max_steps=1, per_device_train_batch_size=2, report_to=[], save_strategy="no", use_cpu=True,
            bf16=False, learning_rate=1e-3, max_length=None)
made = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
before = {name: each.detach().clone() for name, each in made.named_parameters()}
if format == "messages":
    from trl import SFTConfig as Config, SFTTrainer as Trainer
else:
    from trl import DPOConfig as Config, DPOTrainer as Trainer
trainer = Trainer(made, args=Config(**more), train_dataset=rows, processing_class=AutoTokenizer.from_pretrained(model))
trainer.train()
loss = trainer.state.log_history[-1]["train_loss"]
moved = sum(not torch.equal(each, before[name]) for name, each in made.named_parameters())
assert loss == loss and loss > 0 and moved, (loss, moved)
print("rows", len(rows), "loss", loss, "moved", moved)
"""


@pytest.mark.slow
@pytest.mark.parametrize("format", ["messages", "preference"])
def test_trl_trains_on_it(tmp_path: Path, format: str, request: pytest.FixtureRequest) -> None:
    out, _, rows = request.getfixturevalue(format)
    model = resolve_model("tiny").path
    done = subprocess.run(
        [sys.executable, "-c", TRAINED, format, out, model, tmp_path / "trained"], cwd=tmp_path,
        capture_output=True, text=True, check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"rows {len(rows)} loss" in done.stdout
