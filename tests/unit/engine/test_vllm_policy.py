"""Weights on their way to a server: exported untied, proven by the canary; what happens if they do not."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from crl.config import LoraConfig, RoleConfig, SamplingConfig  # noqa: E402
from crl.config.engines import ServerConfig, VllmEngine  # noqa: E402
from crl.engine import vllm_policy  # noqa: E402
from crl.engine.vllm_policy import VllmPolicy  # noqa: E402
from crl.errors import BadInput, CrlError, DiskFull, EngineDied, RunDirectoryUnusable, WrongWeights  # noqa: E402
from crl.policies import load_policy, resolve_model  # noqa: E402
from crl.policies.language_model import load_model  # noqa: E402
from crl.policies.sampling import sequence_logprobs  # noqa: E402
from crl.policies.served import GENERATE  # noqa: E402
from crl.policies.serving import Client  # noqa: E402
from crl.run.directory import RunDirectory  # noqa: E402
from crl.run.lease import Lease  # noqa: E402
from tests.fake_vllm import FakeVllm, serving  # noqa: E402
from tests.unit.engine.harness import make_experiment  # noqa: E402
from tests.windowed import write_windowed  # noqa: E402

SAMPLING = SamplingConfig(max_new_tokens=3)


class Honest(FakeVllm):
    """Scores with the weights that it was told to load, by transformers; with `stale_head` the head never changes."""

    def __init__(self) -> None:
        super().__init__()
        self.stale_head = False
        self._head: Any = None
        self.scores = self._scores
        self._models: dict[str, Any] = {}
        self._loading = threading.Lock()  # transformers loads one model at a time

    def _scores(self, ids: list[int]) -> list[float]:
        assert self.weights is not None
        with self._loading:
            if self.weights not in self._models:
                model = load_model(Path(self.weights), None, dtype=torch.float32)
                head = model.get_output_embeddings()
                self._head = self._head if self.stale_head else head.weight
                head.weight = self._head
                self._models[self.weights] = model
            found = sequence_logprobs(self._models[self.weights], [ids], 1.0, batch=1)[0]
        return [float(each) for each in found]


class Process:
    """In place of a server process: a fake that is served in a thread, anew with every start."""

    started: list[Process]

    def __init__(self, name: str, server: ServerConfig, role: RoleConfig, threads: int) -> None:
        self.name, self.client, self.running, self.pid, self._open = name, None, False, None, None
        self.fake: Any = None

    def start(self, weights: Path) -> Any:
        self.kill()
        # A server that is started reads all weights; what it never does again is take a new head.
        self.fake = Honest()
        self.fake.weights = str(weights)
        self._open = serving(self.fake)
        self._open.__enter__()
        self.client, self.running = Client(self.name, ServerConfig(), self.fake.address), True
        self.started.append(self)
        if type(self).broken:
            score = type(self).score
            self.fake.scores = lambda ids: [score] * len(ids)
        return self.client

    def died(self, what: str) -> EngineDied:
        self.kill()
        return EngineDied(f"{self.name} {what} was killed")

    def kill(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open, self.client, self.running = None, None, False

    stop = kill
    broken = False
    score: float | None = -1.0


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Process]]:
    class Fresh(Process):
        started: list[Process] = []  # noqa: RUF012

    monkeypatch.setattr(vllm_policy, "VllmServer", Fresh)
    yield Fresh
    for each in Fresh.started:
        each.kill()


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint with other weights in every tensor, the embeddings (and so the head) too."""
    directory = tmp_path_factory.mktemp("other")
    model = load_model(resolve_model("tiny").path, None, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter) * 0.05)
    model.save_pretrained(directory)
    return directory


def policy(checkpoint: Path | None = None, weights: str = "a" * 64, **server: Any) -> VllmPolicy:
    role = RoleConfig(model="tiny", engine=VllmEngine())
    loaded = load_policy(
        role, resolve_model("tiny").path, checkpoint, threads=1, server=ServerConfig(**server), weights=weights
    )
    assert isinstance(loaded, VllmPolicy)
    return loaded


def sample(loaded: VllmPolicy) -> Any:
    return loaded.open([[5, 6, 7]], [1]).sample([0], SAMPLING)[0]


def test_a_server_is_started_once_and_takes_new_weights_while_it_runs(process: type[Process], other: Path) -> None:
    loaded = policy()
    assert not process.started, "nothing is started before something is sampled"
    sample(loaded)
    loaded.hand_over(other, "b" * 64)
    sample(loaded)
    sample(loaded)
    [server] = process.started
    paths = [path.partition("?")[0] for path, _, _ in server.fake.requests]
    assert paths.index("/pause") < paths.index("/collective_rpc") < paths.index("/reset_prefix_cache")
    assert paths.count("/collective_rpc") == 1 and paths.count("/resume") == 1
    generated = [body for body in server.fake.asked(GENERATE) if "cache_salt" in body]
    assert [body["cache_salt"][0] for body in generated] == ["a", "b", "b"]
    folder = Path(server.fake.weights).parent
    assert [each.name for each in folder.iterdir()] == ["b" * 16], "what was replaced is gone"
    loaded.close()
    assert not folder.exists() and not server.running


def test_weights_that_are_gone_from_the_folder_are_written_again(process: type[Process], tmp_path: Path) -> None:
    loaded = policy(folder=tmp_path)
    sample(loaded)
    [folder] = tmp_path.iterdir()
    for gone in (folder, None):
        if gone is not None:
            shutil.rmtree(gone)
        else:
            os.utime(folder, (0, 0))
        process.started[-1].kill()
        sample(loaded)
        assert folder.stat().st_mtime > 0, "nobody takes it for left behind"
        assert Path(process.started[-1].fake.weights, "model.safetensors").is_file()
    assert len(process.started) == 3
    loaded.close()


def test_the_head_is_exported_as_a_tensor_of_its_own(process: type[Process], other: Path) -> None:
    from safetensors.torch import load_file

    loaded = policy(other)
    sample(loaded)
    exported = load_file(Path(process.started[0].fake.weights) / "model.safetensors")
    assert torch.equal(exported["lm_head.weight"], exported["model.embed_tokens.weight"])
    # Tied again, it is the model that was handed over: nothing else changed on the way.
    before = load_file(other / "model.safetensors")
    assert before.keys() == exported.keys() - {"lm_head.weight"}
    assert all(torch.equal(before[name], exported[name]) for name in before)
    loaded.close()


def test_an_old_head_is_caught_and_the_server_started_again_once(process: type[Process], other: Path) -> None:
    loaded = policy()
    sample(loaded)
    process.started[0].fake.stale_head = True
    loaded.hand_over(other, "b" * 64)
    sample(loaded)
    assert len(process.started) == 2 and process.started[1].fake.weights.endswith("b" * 16)
    assert process.started[1].fake.version == "b" * 64
    loaded.close()


def test_a_small_update_that_did_not_arrive_is_caught(process: type[Process], tmp_path: Path) -> None:
    """It moves the probe by less than two engines may differ; the server scores as before to the last digit."""
    model = load_model(resolve_model("tiny").path, None, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.data.add_(torch.randn_like(parameter).sign() * 1e-6)
    model.save_pretrained(tmp_path)
    loaded = policy()
    sample(loaded)
    fake = process.started[0].fake
    before, stale = loaded._before, fake._models[fake.weights]
    fake.scores = lambda ids: [float(each) for each in sequence_logprobs(stale, [ids], 1.0, batch=1)[0]]
    loaded.hand_over(tmp_path, "b" * 64)
    sample(loaded)
    moved = vllm_policy._apart(before, loaded._before)
    assert 0 < moved < vllm_policy.TOLERANCE["float32"]
    assert len(process.started) == 2, "the first one was ended"
    loaded.hand_over(resolve_model("tiny").path, "c" * 64)
    sample(loaded)
    assert len(process.started) == 2, "what arrives is as near as engines are"
    loaded.close()


def test_weights_that_never_arrive_end_in_a_message(process: type[Process], other: Path) -> None:
    loaded = policy()
    sample(loaded)
    process.started[0].fake.stale_head = process.broken = True
    loaded.hand_over(other, "b" * 64)
    with pytest.raises(WrongWeights, match=r"other weights than those of bbbbbbbbbbbb.*started.*nats off") as raised:
        sample(loaded)
    assert not raised.value.transient and len(process.started) == 2
    assert not any(each.running for each in process.started)
    loaded.close()


def test_a_server_that_died_is_named_and_the_next_session_starts_another(process: type[Process]) -> None:
    loaded = policy()
    rows = loaded.open([[5, 6, 7]], [1])
    process.started[0].fake.faults[GENERATE] = lambda body: (500, {"error": "out of memory"})
    with pytest.raises(EngineDied, match=r"the vLLM server of tiny answered .* 500: .*out of memory.*; it was killed"):
        rows.sample([0], SAMPLING)
    assert not process.started[0].running
    sample(loaded)
    assert len(process.started) == 2
    process.started[1].fake.scores = lambda ids: [None] * len(ids)
    process.broken, process.score = True, None  # nor does the third one give a score
    loaded.hand_over(None, "b" * 64)
    with pytest.raises(EngineDied, match=r"gave a score that is none .*; it was killed"):
        sample(loaded)
    loaded.close()


def test_a_running_server_is_used_as_it_is_and_outlives_the_policy(process: type[Process], other: Path) -> None:
    with serving(Honest()) as fake:
        loaded = policy(address=fake.address)
        sample(loaded)
        loaded.hand_over(other, "b" * 64)
        sample(loaded)
        assert fake.version == "b" * 64 and len(fake.asked("/collective_rpc")) == 2
        fake.stale_head = True
        loaded.hand_over(None, "c" * 64)
        with pytest.raises(WrongWeights, match="although it was asked to load them"):
            sample(loaded)
        loaded.close()
        assert fake.asked("/health") == [] and not process.started


def test_a_running_server_that_was_started_again_in_another_mode_is_given_no_weights(other: Path) -> None:
    with serving(Honest()) as fake:
        loaded = policy(address=fake.address)
        sample(loaded)
        fake.logprobs_mode = "raw_logprobs"
        loaded.hand_over(other, "b" * 64)
        with pytest.raises(BadInput, match="reports other log-probabilities") as raised:
            sample(loaded)
        assert raised.value.where == "runtime.servers.<role>.address" and len(fake.asked("/collective_rpc")) == 1
        loaded.close()


def test_a_running_server_that_a_killed_engine_left_paused_goes_on(other: Path) -> None:
    with serving(Honest()) as fake:
        fake.paused = True
        loaded = policy(address=fake.address)
        sample(loaded)
        assert not fake.paused and len(fake.asked("/is_paused")) == 1
        # Nor does it stay paused where it pauses, and says so too late.
        fake.faults["/pause?mode=wait"] = lambda body: (setattr(fake, "paused", True), (500, {}))[1]
        loaded.hand_over(other, "b" * 64)
        with pytest.raises(EngineDied, match="answered /pause"):
            sample(loaded)
        assert not fake.paused
        del fake.faults["/pause?mode=wait"]
        sample(loaded)
        loaded.close()


@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), DiskFull),
        (PermissionError(errno.EACCES, "Permission denied", "/there"), RunDirectoryUnusable),
    ],
)
def test_a_folder_that_takes_no_weights_is_named_and_not_the_run_directory(
    process: type[Process], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, refused: OSError, kind: type[CrlError]
) -> None:
    def refuse(*arguments: Any) -> None:
        raise refused

    loaded = policy(folder=tmp_path)
    run = RunDirectory.create_or_open(make_experiment(), tmp_path / "run")
    with Lease.acquire(run.path, seconds=60) as lease, monkeypatch.context() as patched, pytest.raises(kind) as raised:
        patched.setattr(vllm_policy, "save_untied", refuse)
        with run.begin(1, "collect", token=lease.token):
            sample(loaded)
    assert raised.value.found.startswith("the weights cannot be handed over to a vLLM server: ")
    assert Path(str(raised.value.where)).parent == tmp_path and "runtime.servers.<role>.folder" in str(raised.value)
    sample(loaded)
    loaded.close()
    monkeypatch.setattr(vllm_policy, "own_folder", refuse)
    with pytest.raises(kind, match="cannot be handed over"):
        policy(folder=tmp_path)


def test_adapters_are_merged_before_they_are_handed_over(process: type[Process], tmp_path: Path) -> None:
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model
    from safetensors.torch import load_file

    model = load_model(resolve_model("tiny").path, None, dtype=torch.float32)
    settings = LoraConfig(r=2, lora_alpha=8)
    with torch.random.fork_rng():
        torch.manual_seed(2)
        adapted = get_peft_model(
            model, PeftConfig(r=settings.r, lora_alpha=settings.lora_alpha, target_modules="all-linear")
        )
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_()
    adapted.save_pretrained(tmp_path)
    loaded = policy(tmp_path)
    sample(loaded)
    exported = load_file(Path(process.started[0].fake.weights) / "model.safetensors")
    merged = adapted.merge_and_unload().state_dict()
    name = "model.layers.0.self_attn.q_proj.weight"
    assert torch.allclose(exported[name], merged[name]) and not any("lora" in each for each in exported)
    loaded.close()


def test_a_window_that_is_smaller_than_the_context_is_served(process: type[Process], tmp_path: Path) -> None:
    path = shutil.copytree(resolve_model("tiny").path, tmp_path / "model")
    write_windowed(path, 64)

    def load(context: int) -> Any:
        role = RoleConfig(model="forgetful", engine=VllmEngine(), context=context)
        return load_policy(role, path, None, threads=1, server=ServerConfig(), weights="a" * 64)

    assert load(65).context == 65 and not process.started


def test_the_canary_is_computed_on_the_cpu_in_what_the_cpu_can_whatever_gpu_is_there(
    process: type[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, able in {"computes_bfloat16": True, "cpu_computes_bfloat16": False}.items():
        monkeypatch.setattr(f"crl.policies.machine.{place}", lambda able=able: able)
        monkeypatch.setattr(vllm_policy, place, lambda able=able: able, raising=False)
    computed = []

    def scored(model: Any, *arguments: Any, **more: Any) -> Any:
        computed.append(model.dtype)
        return sequence_logprobs(model, *arguments, **more)

    monkeypatch.setattr(vllm_policy, "sequence_logprobs", scored)
    role = RoleConfig(model="tiny", dtype="bfloat16", engine=VllmEngine())
    loaded = load_policy(role, resolve_model("tiny").path, None, threads=1, server=ServerConfig(), weights="a" * 64)
    assert isinstance(loaded, VllmPolicy)
    sample(loaded)
    assert computed == [torch.float32]
    loaded.close()
