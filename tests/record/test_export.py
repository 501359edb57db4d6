"""Agents that leave real runs: adapters of a model of the Hub, and merged ones; and what stays in the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow.parquet as pq
import pytest
import torch
import yaml
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from crl.audit.verify import verify
from crl.config import Runtime
from crl.config.engines import ServerConfig, interpreter
from crl.engine.driver import Driver
from crl.errors import BadInput
from crl.policies.language_model import load_model
from crl.policies.sources import resolve_model
from crl.records import Evaluation, Weights, rows_of
from crl.rounds.evaluate import best_round, recorded_evaluations
from crl.rounds.tasks import query_of
from crl.run.directory import RunDirectory
from crl.run.pruned import pruned
from crl.serve.export import export_agent
from crl.serve.source import open_agent
from tests.tiny_run import crl_here, train
from tests.unit.serve.test_export import contents

pytestmark = pytest.mark.slow
MODEL, COMMIT, ROUNDS = "acme/tiny", "c" * 40, 3
NEEDS_VLLM = pytest.mark.skipif(
    not interpreter(ServerConfig()).is_file(),
    reason="no environment with vLLM: run `make vllm`, or set CRL_VLLM_PYTHON",
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The Hub's cache with a model, whose heads have a size that vLLM knows on a CPU; there is no network."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from crl.policies.tiny import write_tiny

    home = tmp_path_factory.mktemp("hub")
    snapshot = home / "models--acme--tiny" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (home / "models--acme--tiny" / "refs").mkdir()
    (home / "models--acme--tiny" / "refs" / "main").write_text(COMMIT)
    write_tiny(snapshot)
    config = LlamaConfig.from_pretrained(snapshot)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).float().save_pretrained(snapshot)
    with cached(home):
        yield home


@contextmanager
def cached(home: Path) -> Iterator[None]:
    """Inside, this process and its children look into a cache of the Hub, and nowhere else."""
    from huggingface_hub import constants

    settings = {"HF_HUB_CACHE": str(home), "HF_HUB_OFFLINE": "1"}
    with (
        mock.patch.dict(os.environ, settings),
        mock.patch.multiple(constants, HF_HUB_CACHE=str(home), HF_HUB_OFFLINE=True),
    ):
        yield


@pytest.fixture(scope="module")
def run(cache: Path, finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rounds of adapters, of which retention keeps one, and the best; they begin with the bank of another run."""
    runs = tmp_path_factory.mktemp("lora") / "runs"
    roles = {
        f"method__roles__{role}__{key}": value
        for role in ("actor", "extractor")
        for key, value in {"model": MODEL, "lora": "{r: 4}"}.items()
    }
    words = train(ROUNDS, name="lora", runtime__save_total_limit=1, **roles)
    crl_here(runs, "bank", "import", "conf/tiny.yaml", finished, *words[words.index("--set") :])
    crl_here(runs, *words)
    return runs / "lora"


@pytest.fixture(scope="module")
def folders(run: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The adapter, and the model that it is merged into."""
    root = tmp_path_factory.mktemp("folders")
    for name, merge in (("adapter", False), ("merged", True), ("adapter2", False), ("merged2", True)):
        export_agent(run, root / name, merge=merge)
    return {path.name: path for path in root.iterdir()}


def test_exporting_twice_gives_equal_files(folders: dict[str, Path]) -> None:
    for name in ("adapter", "merged"):
        assert contents(folders[name]) == contents(folders[f"{name}2"])


def test_an_adapter_of_a_model_of_the_hub_names_it_and_its_revision(folders: dict[str, Path]) -> None:
    config = json.loads((folders["adapter"] / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (MODEL, COMMIT)
    front = yaml.safe_load((folders["adapter"] / "README.md").read_text().split("---")[1])
    assert (front["base_model"], front["base_model_relation"]) == (MODEL, "adapter")
    for name in ("adapter", "merged"):
        assert json.loads((folders[name] / "experience.json").read_text())["source"] == f"{MODEL}@{COMMIT}"


def prompt_of(folder: Path) -> torch.Tensor:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = [{"role": "user", "content": "go up"}]
    return torch.tensor([tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]])


def opened(folders: dict[str, Path], base: Path) -> dict[str, Any]:
    """As others open them."""
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folders["adapter"])
    return {"adapter": adapted.eval(), "merged": AutoModelForCausalLM.from_pretrained(folders["merged"]).eval()}


def test_peft_and_transformers_open_them_with_the_logits_of_the_run(run: Path, folders: dict[str, Path]) -> None:
    agent = open_agent(run)
    assert agent.checkpoint is not None
    ids = prompt_of(folders["adapter"])
    assert torch.equal(ids, prompt_of(folders["merged"]))
    with torch.no_grad():
        expected = load_model(agent.base, agent.checkpoint, dtype=torch.float32).eval()(ids).logits
        plain = load_model(agent.base, None, dtype=torch.float32).eval()(ids).logits
        for name, model in opened(folders, agent.base).items():
            torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-5, msg=name)
    assert (expected - plain).abs().max() > 1e-3


def test_an_agent_plays_the_same_from_each(run: Path, folders: dict[str, Path]) -> None:
    played = []
    for place in (run, folders["adapter"], folders["merged"]):
        with open_agent(place) as agent:
            start = agent.environment("lake").reset_many([1_000_000])[0]
            guidance, policy = agent.retrieve("lake", query_of(start)), agent.policy()
            messages, ids = agent.opening(policy.chat, "lake", start, guidance)
            sampled = policy.open([ids] * 3, [1, 2, 3]).sample([0, 1, 2], agent.sampling("lake"))
            played.append((messages, ids, [turn.token_ids for turn in sampled.values()], guidance))
    assert played[0][3] is not None
    assert played[0] == played[1] == played[2]


@pytest.mark.parametrize("name", ["adapter", "merged"])
def test_an_exported_agent_plays_the_episodes_of_the_record_again(
    run: Path, folders: dict[str, Path], name: str, tmp_path: Path
) -> None:
    made, number = RunDirectory.open(run), open_agent(run).round
    recorded = rows_of(Evaluation, made.read(number, "evaluate", Evaluation))
    told = crl_here(tmp_path, "evaluate", folders[name], "--json", "--out", tmp_path / "rows.parquet").stdout
    compared = json.loads(told)["compared"]
    assert compared["same"] and compared["episodes"] == compared["equal"] == len(recorded)
    assert compared["computed"] == compared["stored_computed"]
    assert rows_of(Evaluation, pq.read_table(tmp_path / "rows.parquet")) == recorded
    assert any(row.guided for row in recorded)


def test_without_its_base_an_adapter_says_what_it_needs(folders: dict[str, Path], tmp_path: Path) -> None:
    with cached(tmp_path):
        for ask in (lambda: open_agent(folders["adapter"]).base, lambda: resolve_model(str(folders["adapter"]))):
            with pytest.raises(BadInput, match=f"{MODEL}@{COMMIT}"):
                ask()
        assert open_agent(folders["merged"]).base == folders["merged"]


@pytest.mark.parametrize("name", ["adapter", "merged"])
def test_an_experiment_goes_on_with_an_exported_folder(
    folders: dict[str, Path], name: str, tmp_path: Path, cache: Path
) -> None:
    words = train(1, name="next", method__roles__actor__model=str(folders[name]), method__recipe__warm_start="null")
    crl_here(tmp_path / "runs", "bank", "import", "conf/tiny.yaml", folders[name], *words[words.index("--set") :])
    crl_here(tmp_path / "runs", *words)
    made = RunDirectory.open(tmp_path / "runs" / "next")
    first = rows_of(Weights, made.read(0, "initialize", Weights))
    assert next(row for row in first if row.role == "actor").base_digest == resolve_model(str(folders["merged"])).digest
    assert verify(made.path) == []


def test_a_tokenizer_takes_room_once_and_the_record_holds_with_its_links(run: Path) -> None:
    checkpoints = sorted(run.glob("rounds/*/*/checkpoint"))
    assert len(checkpoints) > 1
    assert len({(path / "tokenizer.json").stat().st_ino for path in checkpoints}) == 1
    assert pruned(run) and verify(run) == []
    crl_here(run.parent, "fork", "lora", "--round", str(ROUNDS), "--name", "child")
    assert verify(run.parent / "child") == []
    shutil.rmtree(run.parent / "child")
    assert verify(run) == []


@pytest.mark.parametrize("best", [1, 2])
def test_retention_keeps_the_best_evaluated_round(
    unpruned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, best: int
) -> None:
    path = shutil.copytree(unpruned, tmp_path / unpruned.name)
    held = RunDirectory.open(path)
    assert best_round(held.method, recorded_evaluations(held)) is not None
    monkeypatch.setattr("crl.rounds.guards.best_of", lambda success: best)
    with Driver(held, Runtime(save_total_limit=1)) as driver, driver.round(2):
        pass  # it is complete: retention follows
    for role in ("actor", "extractor"):
        needed = {
            row.checkpoint
            for number in (best, 2)
            for row in rows_of(Weights, held.read(number, f"update_{role}", Weights))
        }
        left = {each.relative_to(path).as_posix() for each in path.glob(f"rounds/*/*_{role}/checkpoint")}
        assert left == needed - {None}
    assert verify(path) == []
    assert open_agent(path, best).checkpoint is not None


VLLM = """
import json, sys
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

base, adapter, merged, ids = json.loads(sys.argv[1])
how = SamplingParams(temperature=0, max_tokens=6, logprobs=1)
found = {}
for name, model in (("adapter", base), ("merged", merged)):
    llm = LLM(model, dtype="float32", enforce_eager=True, max_model_len=256, max_num_seqs=2, max_lora_rank=8,
              enable_lora=name == "adapter")
    lora = LoRARequest("agent", 1, adapter) if name == "adapter" else None
    written = llm.generate([{"prompt_token_ids": ids}], how, use_tqdm=False, lora_request=lora)[0].outputs[0]
    found[name] = [list(written.token_ids), [next(iter(each.values())).logprob for each in written.logprobs]]
    del llm
print("FOUND", json.dumps(found))
"""


@NEEDS_VLLM
def test_vllm_opens_the_adapter_and_the_merged_model(run: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    agent, ids = open_agent(run), prompt_of(folders["merged"])
    words = json.dumps([str(agent.base), str(folders["adapter"]), str(folders["merged"]), ids[0].tolist()])
    (tmp_path / "ask.py").write_text(VLLM)
    settings = {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    done = subprocess.run(
        [str(interpreter(ServerConfig())), str(tmp_path / "ask.py"), words],
        env={**os.environ, **settings, "PYTHONPATH": ""}, capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    told = [line for line in done.stdout.splitlines() if line.startswith("FOUND")]
    assert told, done.stdout[-3000:] + done.stderr[-3000:]
    found = json.loads(told[0].removeprefix("FOUND"))
    for name, model in opened(folders, agent.base).items():
        tokens, logprobs = found[name]
        with torch.no_grad():
            logits = model(torch.tensor([ids[0].tolist() + tokens])).logits[0, ids.shape[1] - 1 : -1]
        expected = logits.log_softmax(-1)
        assert tokens == expected.argmax(-1).tolist(), name
        assert logprobs == pytest.approx(expected.max(-1).values.tolist(), abs=1e-3), name
