"""The rollout engine vllm against vLLM itself: exact tokens, weights that arrive, servers that are killed.

Needs its environment (`make vllm`, or CRL_VLLM_PYTHON). A server takes half a minute to start on an idle machine of two
cores. vLLM's kernels for the CPU know no head of 16, which `tiny` has: the model here is the same with heads of 32.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import yaml

from crl.audit.verify import require_intact
from crl.config import LoraConfig, RoleConfig, SamplingConfig
from crl.config.engines import OpenAIEngine, ServerConfig, VllmEngine, interpreter
from crl.config.load import parse_experiment
from crl.engine.driver import Driver
from crl.engine.events import Event, StageDone, StageErrored, StageStarted
from crl.engine.vllm_policy import VllmPolicy
from crl.engine.vllm_server import wrong_logprobs
from crl.policies.served import ServedSession
from crl.policies.serving import Client
from crl.protocols import Sampled
from crl.records import Generation
from crl.run.directory import RunDirectory
from tests.fake_vllm import left_in_shared_memory
from tests.faults.killing import MARK, marked
from tests.learning.harness import rows
from tests.learning.test_token_exactness import EXPERIMENT, compare, weights_by_digest
from tests.listening import Listening
from tests.processes import command_line, free_port, kill, wait_until
from tests.served_rounds import play_rounds

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not interpreter(ServerConfig()).is_file(),
        reason="no environment with vLLM: run `make vllm`, or set CRL_VLLM_PYTHON",
    ),
]

LARGEST = 1e-4
API_SERVER = "vllm.entrypoints.openai.api_server"
SAMPLING = SamplingConfig(temperature=0.8, max_new_tokens=12)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from crl.policies.tiny import write_tiny

    directory = tmp_path_factory.mktemp("tiny32")
    write_tiny(directory)
    config = LlamaConfig.from_pretrained(directory)
    config.num_attention_heads, config.num_key_value_heads, config.head_dim = 2, 1, 32
    with torch.random.fork_rng():
        torch.manual_seed(0)
        LlamaForCausalLM(config).float().save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def other(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of the model with other weights, tied as they are."""
    import torch

    from crl.policies.language_model import load_model

    directory = tmp_path_factory.mktemp("other")
    changed = load_model(model, None, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in changed.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    changed.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def policy(model: Path) -> Iterator[VllmPolicy]:
    role = RoleConfig(model=str(model), engine=VllmEngine(), context=256)
    made = VllmPolicy(role, model, None, threads=1, server=ServerConfig(), weights="a" * 64)
    yield made
    made.close()


def largest_gap(weights: Path, model: Path, prompts: list[list[int]], found: Mapping[int, Sampled]) -> float:
    """Between the log-probabilities that were told and those of transformers, in one pass over each row."""
    import torch

    from crl.policies.language_model import load_model

    judge = load_model(model, weights, dtype=torch.float32)
    gaps = []
    for row, turn in found.items():
        ids = [*prompts[row], *turn.token_ids]
        with torch.inference_mode():
            logprobs_TV = torch.log_softmax(judge(torch.tensor([ids])).logits[0].double() / SAMPLING.temperature, -1)
        choices = iter(turn.choices)
        for place, drawn in enumerate(turn.drawn or [1] * len(turn.token_ids), start=len(prompts[row])):
            told = turn.logprobs[place - len(prompts[row])]
            if not drawn:
                assert told == 0.0
                continue
            expected = float(logprobs_TV[place - 1, ids[place]])
            if turn.choices:
                expected -= float(logprobs_TV[place - 1, next(choices)].logsumexp(0))
            gaps.append(abs(told - expected))
    assert len(gaps) > len(found)
    return max(gaps)


def prompts_of(count: int) -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(5, 500, 8 + row % 9).tolist() for row in range(count)]


def test_its_processes_listen_on_this_machine_only(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    role = RoleConfig(model=str(model), engine=VllmEngine(), context=256)
    with Listening() as listening:
        for name, value in listening.environment.items():
            monkeypatch.setenv(name, value)
        made = VllmPolicy(role, model, None, threads=1, server=ServerConfig(), weights="a" * 64)
        try:
            made.open(prompts_of(2), [0, 1]).sample([0, 1], SAMPLING)
        finally:
            made.close()
    assert listening.outside == set()


def test_tokens_are_exact_and_the_same_for_every_batch_limit(policy: VllmPolicy, model: Path) -> None:
    prompts, found = prompts_of(64), {}
    policy.open(prompts[:1], [0])
    server = policy._served._server
    assert server is not None
    for limit in (1, 7, 64):
        config = ServerConfig(requests=limit)
        client = Client("the server", config, "http://localhost", socket=str(server._folder / "socket"))
        session = ServedSession(client, "a" * 64, policy._end_ids, 256, prompts, range(64))
        found[limit] = session.sample(range(64), SAMPLING)
        again = session.sample([5, 60], SAMPLING)
        assert again[5].token_ids != found[limit][5].token_ids
        assert wrong_logprobs(client, "") is None
        client.close()
    assert largest_gap(model, model, prompts, found[7]) < LARGEST
    for limit in (1, 7):
        assert {row: turn.token_ids for row, turn in found[limit].items()} == {
            row: turn.token_ids for row, turn in found[64].items()
        }
    assert len({tuple(turn.token_ids) for turn in found[64].values()}) > 60


def test_prompts_that_one_pass_cannot_hold(policy: VllmPolicy, model: Path) -> None:
    random = np.random.default_rng(5)
    prompts = [random.integers(5, 500, 200).tolist() for _ in range(96)]
    found = policy.open(prompts, range(96)).sample(range(96), SAMPLING)
    assert largest_gap(model, model, prompts, found) < LARGEST


def test_answers_of_its_own_are_exact_under_the_distribution_they_were_drawn_from(
    policy: VllmPolicy, model: Path
) -> None:
    prompts = prompts_of(24)
    tree = {10: {4: {}}, 20: {21: {4: {}}, 22: {30: {4: {}}}}, 40: {4: {}}}
    found = policy.open(prompts, range(24)).sample(range(24), SAMPLING, dict.fromkeys(range(24), tree))
    assert {tuple(turn.token_ids) for turn in found.values()} == {(10, 4), (20, 21, 4), (20, 22, 30, 4), (40, 4)}
    assert largest_gap(model, model, prompts, found) < LARGEST


def test_new_weights_arrive_in_place_and_an_old_head_is_caught(
    policy: VllmPolicy, model: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = prompts_of(4)

    def gap(weights: Path) -> float:
        return largest_gap(weights, model, prompts, policy.open(prompts, range(4)).sample(range(4), SAMPLING))

    assert gap(model) < LARGEST
    before = policy.server_pid
    policy.hand_over(other, "b" * 64)
    assert gap(other) < LARGEST and policy.server_pid == before
    # As vLLM alone reads weights: on the CPU it keeps its old head where that is tied to the embeddings.
    calls = [("reload_weights", {"weights_path": str(model)})]
    monkeypatch.setattr("crl.engine.vllm_weights.ServedWeights._calls", lambda served: iter(calls))
    policy.hand_over(None, "c" * 64)
    assert gap(model) < LARGEST
    assert policy.server_pid != before, "the canary saw it, and the server was started again"


def test_adapters_are_merged_and_exact(model: Path, tmp_path: Path) -> None:
    import torch
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    from crl.policies.language_model import load_model

    for seed in (1, 2):
        adapted = get_peft_model(
            load_model(model, None, dtype=torch.float32), PeftConfig(r=4, lora_alpha=8, target_modules="all-linear")
        )
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            for name, parameter in adapted.named_parameters():
                if "lora_B" in name:
                    parameter.data.normal_(std=0.05)
        adapted.save_pretrained(tmp_path / str(seed))
    role = RoleConfig(model=str(model), engine=VllmEngine(), context=256, lora=LoraConfig(r=4))
    made = VllmPolicy(role, model, tmp_path / "1", threads=1, server=ServerConfig(), weights="1" * 64)
    prompts, pids = prompts_of(4), set()
    try:
        for seed in (1, 2):
            made.hand_over(tmp_path / str(seed), str(seed) * 64)
            found = made.open(prompts, range(4)).sample(range(4), SAMPLING)
            assert largest_gap(tmp_path / str(seed), model, prompts, found) < LARGEST
            pids.add(made.server_pid)
    finally:
        made.close()
    assert len(pids) == 1 and not left_in_shared_memory()


@pytest.mark.parametrize("kind", ["large", "base"])
def test_one_server_lives_for_three_rounds(model: Path, tmp_path: Path, kind: str) -> None:
    """SmolLM2 makes room for its trainer; two adapters stand on one base, and are merged for a server each."""
    name = "smollm2-135m-instruct" if kind == "large" else str(model)
    actor = {"model": name, "engine": "vllm", "context": 256, "optimizer": {"learning_rate": 1e-3}}
    adapted = {"lora": {"r": 4}, "optimizer": {"learning_rate": 1e-3}}
    roles = {"actor": actor, "extractor": {"weights": "actor"}}
    if kind == "base":
        roles = {"actor": {**actor, **adapted}, "extractor": {**adapted, "base": "actor"}}
    pids: dict[str, set[int]] = {"actor": set(), "extractor": set()}

    def remember(services: Any, role: str, number: int) -> None:
        pids[role].add(services._policies[role][1].server_pid)

    play_rounds(tmp_path, roles, 3, remember)
    assert [len(each) for each in pids.values()] == [1, 1]
    assert (pids["actor"] == pids["extractor"]) == (kind == "large")


def settings(model: Path) -> dict[str, Any]:
    data: dict[str, Any] = yaml.safe_load(EXPERIMENT)
    method = data["method"]
    method["families"] = [{**method["families"][0], "groups": 4}]
    for role in method["roles"].values():
        role |= {"model": str(model), "engine": "vllm"}
    method["recipe"] |= {"extractor_objective": {"batch": 16}}
    method["recipe"]["warm_start"] |= {"actor_episodes": 24, "extractor_episodes": 24}
    data["runtime"] = {"retry_delay_seconds": 0.1, "retries": 3, "save_total_limit": 9}
    return data


class Killer:
    """Kills the API servers once in each stage: those that run when it begins, else the first one that it starts."""

    def __init__(self, mark: str) -> None:
        self.mark, self.killed, self.failed = mark, list[str](), list[str]()
        self.armed = True
        self.over = threading.Event()
        """Set when the stage that runs is done."""

    def __call__(self, event: Event) -> None:
        if isinstance(event, StageErrored):
            self.failed.append(event.stage)
        if isinstance(event, StageDone):
            self.over.set()
        if self.armed and isinstance(event, StageStarted) and event.attempt == 1:
            self.over, stage = threading.Event(), f"{event.round}/{event.stage}"
            if not self.kill(stage):
                threading.Thread(target=self.wait_and_kill, args=(stage, self.over), daemon=True).start()

    def kill(self, stage: str) -> bool:
        found = [each for each in marked(self.mark) if API_SERVER in command_line(each)]
        kill(found)
        self.killed += [stage] if found else []
        return bool(found)

    def wait_and_kill(self, stage: str, over: threading.Event) -> None:
        while not over.wait(0.05) and not self.kill(stage):
            pass


def test_two_rounds_are_trained_though_the_servers_are_killed_in_every_stage(model: Path, tmp_path: Path) -> None:
    mark = f"vllm-{os.getpid()}"
    experiment = parse_experiment(settings(model), base=Path(), where="test")
    run = RunDirectory.create_or_open(experiment, tmp_path)
    killer = Killer(mark)
    with Driver(run, experiment.runtime, environment={MARK: mark}) as driver:
        driver.subscribe(killer)
        driver.set_target(2)
        driver.run_rounds(2)
        killer.armed = False
        for stage in ("plan", "collect", "distill"):
            driver.run_stage(3, stage)
        assert len([each for each in marked(mark) if API_SERVER in command_line(each)]) >= 1
        # What kills the engine ends its servers, and everything that they started.
        for pid in driver._tracks[0].engines.shard(0).pids:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not marked(mark), lambda: f"living: {[command_line(each) for each in marked(mark)]}")
    sampling = {f"{number}/{stage}" for number in (1, 2) for stage in ("collect", "distill")} | {"2/merge"}
    print(f"killed in {killer.killed}, failed and tried again: {killer.failed}")
    assert set(killer.killed) >= sampling and killer.failed
    require_intact(run.path)
    weights = weights_by_digest(run)
    for stages in (["collect"], ["distill", "merge"]):
        written = [
            each
            for number in (1, 2, 3)
            for stage in stages
            if run.is_complete(number, stage)
            for each in rows(run, Generation, stage, [number])
        ]
        updates = {weights[each.weights_digest].updates for each in written if each.round == 3}
        assert updates == {2}, "the third round is sampled by what the second one trained"
        compared = compare(run, written)
        print(f"{stages}: {compared}")
        assert compared.gaps.max() < LARGEST


def test_a_frozen_role_is_answered_by_vllm_as_by_any_other_endpoint(model: Path, tmp_path: Path) -> None:
    port = free_port()
    words = ["--model", str(model), "--served-model-name", "some/model", "--host", "127.0.0.1", "--port", str(port)]
    settings = {
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TORCH_COMPILE_DISABLE": "1",
        "PYTHONPATH": "",
        "HF_HUB_OFFLINE": "1",
        "VLLM_API_KEY": "sk-1",
    }
    log = (tmp_path / "log").open("wb")
    server = subprocess.Popen(
        [str(interpreter(ServerConfig())), "-m", API_SERVER, *words, "--enforce-eager", "--max-model-len", "256"],
        env={**os.environ, **settings},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        config = ServerConfig(address=f"http://127.0.0.1:{port}/v1", key_variable="VLLM_API_KEY")
        health = Client("the server", config, f"http://127.0.0.1:{port}")
        wait_until(lambda: health.healthy() or server.poll() is not None, "vLLM did not start")
        assert server.poll() is None, (tmp_path / "log").read_text()[-3000:]
        os.environ["VLLM_API_KEY"] = "sk-1"
        role = RoleConfig(model="endpoint:some/model", engine=OpenAIEngine())
        asked = OpenAIEngine().load(role, model, None, threads=1, server=config)
        prompts = [asked.chat.opening([{"role": "user", "content": f"go {word}"}]) for word in ("left", "up", "left")]
        first = asked.open(prompts, [1, 2, 1]).sample([0, 1, 2], SAMPLING)
        again = asked.open(prompts, [1, 2, 1]).sample([0, 1, 2], SAMPLING)
        assert first == again, "equal seeds"
        assert first[0].token_ids == first[2].token_ids != first[1].token_ids
        assert asked.chat.decode(first[0].token_ids)
    finally:
        os.environ.pop("VLLM_API_KEY", None)
        for process in [*psutil.Process(server.pid).children(recursive=True), psutil.Process(server.pid)]:
            process.kill()
        server.wait()
        log.close()
