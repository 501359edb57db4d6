"""Weights on their way to a server: read where they are, proven by a probe; what happens if they do not arrive."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from crl.config import LoraConfig, RoleConfig, SamplingConfig  # noqa: E402
from crl.config.engines import ServerConfig, VllmEngine  # noqa: E402
from crl.engine import vllm_weights  # noqa: E402
from crl.engine.vllm_policy import VllmPolicy  # noqa: E402
from crl.engine.vllm_server import Adapters  # noqa: E402
from crl.errors import BadInput, CrlError, DiskFull, EngineDied, RecordDamaged, RunDirectoryUnusable, WrongWeights  # noqa: E402
from crl.policies import load_policy, resolve_model  # noqa: E402
from crl.policies.language_model import load_model  # noqa: E402
from crl.policies.served import GENERATE  # noqa: E402
from crl.policies.serving import Client  # noqa: E402
from crl.run.directory import RunDirectory  # noqa: E402
from crl.run.guardian import SHARED_MEMORY  # noqa: E402
from crl.run.lease import Lease  # noqa: E402
from tests.fake_vllm import Honest, serving  # noqa: E402
from tests.marks import sampled  # noqa: E402
from tests.unit.engine.harness import make_experiment  # noqa: E402
from tests.windowed import write_windowed  # noqa: E402

SAMPLING = SamplingConfig(max_new_tokens=3)


class Process:
    """In place of a server process: a fake that is served in a thread, anew with every start."""

    started: list[Process]

    def __init__(
        self, name: str, server: ServerConfig, role: RoleConfig, threads: int, adapters: Adapters | None = None
    ) -> None:
        self.name, self.client, self.running, self.pid, self._open = name, None, False, None, None
        self.adapters, self.starts, self.answers, self.rests, self.refuses_adapters = adapters, 0, {}, True, False
        self.fake: Any = None

    def start(self, weights: Path) -> Any:
        self.kill()
        if self.adapters is not None and type(self).without_adapters:
            self.refuses_adapters = True
            raise EngineDied(f"{self.name} did not start: LoRA is not supported")
        self.fake = Honest(weights)
        self._open = serving(self.fake)
        self._open.__enter__()
        self.client, self.running = Client(self.name, ServerConfig(), self.fake.address), True
        self.starts += 1
        self.started.append(self)
        self.fakes.append(self.fake)
        if type(self).broken:
            score = type(self).score
            self.fake.scores = lambda ids: {7: score}
        return self.client

    def awake(self) -> Any:
        return self.client

    def died(self, what: str) -> EngineDied:
        self.kill()
        return EngineDied(f"{self.name} {what} was killed")

    def kill(self) -> None:
        if self._open is not None:
            self._open.__exit__(None, None, None)
        self._open, self.client, self.running = None, None, False

    def sleep(self) -> None:
        """Nothing is freed on a CPU."""

    stop = kill
    broken = without_adapters = False
    score: float | None = -1.0
    fakes: list[Any]


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Process]]:
    class Fresh(Process):
        started: list[Process] = []  # noqa: RUF012
        fakes: list[Any] = []  # noqa: RUF012

    monkeypatch.setattr(vllm_weights, "VllmServer", Fresh)
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


def policy(checkpoint: Path | None = None, weights: str = "a" * 64, lora: Any = None, **server: Any) -> VllmPolicy:
    role = RoleConfig(model="tiny", engine=VllmEngine(), lora=lora)
    loaded = load_policy(
        role, resolve_model("tiny").path, checkpoint, threads=1, server=ServerConfig(**server), weights=weights
    )
    assert isinstance(loaded, VllmPolicy)
    return loaded


def sample(loaded: VllmPolicy) -> Any:
    return loaded.open([[5, 6, 7]], [1]).sample([0], SAMPLING)[0]


def changed(directory: Path, by: float, only: str = "") -> Path:
    """A checkpoint whose tensors are a little off, or one of them."""
    model = load_model(resolve_model("tiny").path, None, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in model.named_parameters():
            if only in name:
                parameter.data.add_(torch.randn_like(parameter).sign() * by)
    model.save_pretrained(directory)
    return directory


def adapter(directory: Path, seed: int = 2, *, idle: bool = False) -> Path:
    """An adapter that changes what the model says, unless it is idle."""
    from peft import LoraConfig as PeftConfig
    from peft import get_peft_model

    model = load_model(resolve_model("tiny").path, None, dtype=torch.float32)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        adapted = get_peft_model(model, PeftConfig(r=2, lora_alpha=8, target_modules="all-linear"))
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.data.normal_(std=0.0 if idle else 0.1)
    adapted.save_pretrained(directory)
    return directory


def test_a_server_is_started_once_on_the_base_and_takes_new_weights_where_they_are(
    process: type[Process], other: Path
) -> None:
    loaded, base = policy(), resolve_model("tiny").path
    assert not process.started, "nothing is started before something is sampled"
    sample(loaded)
    loaded.hand_over(other, "b" * 64)
    sample(loaded)
    sample(loaded)
    assert process.fakes[0].weights == str(other)
    loaded.hand_over(None, "a" * 64)
    sample(loaded)
    [server], [fake] = process.started, process.fakes
    paths = [path.partition("?")[0] for path, _, _ in fake.requests]
    assert paths.index("/pause") < paths.index("/collective_rpc") < paths.index("/reset_prefix_cache")
    asked = [body["kwargs"] for body in fake.asked("/collective_rpc")]
    assert asked == [{"directory": str(other)}, {"directory": str(base)}], "a new process has the base's"
    assert paths.count("/resume") == 2
    generated = [body for body in fake.asked(GENERATE) if "cache_salt" in body]
    assert [body["cache_salt"][0] for body in generated] == ["a", "b", "b", "a"]
    loaded.close()
    assert not server.running


def test_what_went_wrong_first_is_told_where_a_server_cannot_go_on_either(
    process: type[Process], other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, post = policy(), Client.post
    sample(loaded)

    def refusing(self: Client, path: str, *args: Any, **words: Any) -> Any:
        if path in ("/collective_rpc", "/resume"):
            raise EngineDied(f"{self.name} refused {path}")
        return post(self, path, *args, **words)

    monkeypatch.setattr(Client, "post", refusing)
    loaded.hand_over(other, "b" * 64)
    with pytest.raises(EngineDied, match="refused /collective_rpc"):
        sample(loaded)


def test_two_roles_of_one_set_of_weights_may_sample_with_those_of_two_rounds_in_turn(
    process: type[Process], other: Path
) -> None:
    """Where rounds overlap on one engine an extractor that has the actor's weights is a round behind."""
    path, role = resolve_model("tiny").path, RoleConfig(model="tiny", engine=VllmEngine())
    servers = vllm_weights.VllmServers()
    served = servers.weights("actor", {"actor": role}, path, ServerConfig(), 1)
    rounds = {"a" * 64: None, "b" * 64: other}
    loaded = [
        VllmPolicy(role, path, checkpoint, threads=1, server=ServerConfig(), weights=weights, served=served)
        for weights, checkpoint in rounds.items()
    ]
    try:
        for policy, weights in [*zip(loaded, rounds, strict=True)] * 2:
            sample(policy)
            assert process.fakes[-1].version == weights
        assert [each.starts for each in process.started] == [1]
    finally:
        servers.close()


def test_a_run_that_goes_on_has_its_server_started_on_the_base_too(process: type[Process], other: Path) -> None:
    loaded = policy(other, "b" * 64)
    sample(loaded)
    [fake] = process.fakes
    assert [body["kwargs"] for body in fake.asked("/collective_rpc")] == [{"directory": str(other)}]
    assert fake.version == "b" * 64
    loaded.close()


@pytest.mark.parametrize(
    "kept", sampled(["lm_head.weight", "model.layers.0.mlp.down_proj.weight", "model.norm.weight"], 3)
)
def test_a_tensor_that_stays_behind_is_caught_and_the_server_started_again_once(
    process: type[Process], tmp_path: Path, kept: str
) -> None:
    """An old head, or one layer: the update moved the probe by less than two engines may differ."""
    loaded = policy()
    sample(loaded)
    process.fakes[0].keeps = {kept}
    loaded.hand_over(changed(tmp_path, 1e-4), "b" * 64)
    sample(loaded)
    assert len(process.started) == 2 and process.fakes[1].weights == str(tmp_path)
    assert process.fakes[1].version == "b" * 64
    loaded.close()


def test_a_small_update_that_did_not_arrive_is_caught_and_one_that_did_is_not(
    process: type[Process], tmp_path: Path
) -> None:
    loaded = policy()
    sample(loaded)
    loaded.hand_over(changed(tmp_path / "first", 1e-6), "b" * 64)
    sample(loaded)
    assert len(process.started) == 1, "what arrives is as near as engines are"
    process.fakes[0].keeps = {name for name, _ in process.fakes[0]._model.named_parameters()}
    loaded.hand_over(changed(tmp_path / "second", 2e-6), "c" * 64)
    sample(loaded)
    assert len(process.started) == 2
    loaded.close()


@pytest.mark.parametrize("damage", sampled(["missing", "half", "shape", "tensor"], 2))
@pytest.mark.parametrize("kind", sampled(["full", "adapter"], 2))
def test_a_server_is_never_asked_for_weights_that_are_not_whole(
    process: type[Process], tmp_path: Path, damage: str, kind: str
) -> None:
    from safetensors.torch import load_file, save_file

    make = adapter if kind == "adapter" else lambda directory: changed(directory, 1e-2)
    loaded = policy(lora=LoraConfig(r=2) if kind == "adapter" else None)
    sample(loaded)
    path = make(tmp_path / "damaged")
    [file] = path.glob("*.safetensors")
    tensors = load_file(file)
    name = sorted(tensors)[3]
    if damage == "missing":
        file.unlink()
    elif damage == "half":
        os.truncate(file, file.stat().st_size // 2)
    else:
        changes = {name: torch.zeros(3, 3)} if damage == "shape" else {}
        save_file({**{key: each for key, each in tensors.items() if key != name}, **changes}, file, {"format": "pt"})
    before = len(process.fakes[0].requests)
    loaded.hand_over(path, "b" * 64)
    with pytest.raises(RecordDamaged) as raised:
        sample(loaded)
    assert str(path) in str(raised.value)
    assert len(process.fakes[0].requests) == before and process.started[0].running
    loaded.hand_over(make(tmp_path / "whole"), "c" * 64)
    sample(loaded)
    assert len(process.started) == 1
    loaded.close()


def test_on_a_gpu_an_adapter_is_loaded_from_its_checkpoint_under_a_name_of_its_own(
    process: type[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_weights, "gpu_count", lambda: 1)
    loaded = policy(lora=LoraConfig(r=2))
    sample(loaded)
    [server], [fake] = process.started, process.fakes
    assert server.adapters == Adapters(1, 8)
    first, second = adapter(tmp_path / "first"), adapter(tmp_path / "second", 3)
    for number, each in enumerate((first, second, None, second)):
        loaded.hand_over(each, str(number) * 64)
        sample(loaded)
    names = [body["lora_name"] for body in fake.asked("/v1/load_lora_adapter")]
    assert names == [f"policy-{number * 16}" for number in "013"]
    assert fake.adapters == {names[2]: str(second)}, "those before are gone"
    models = [body.get("model") for body in fake.asked(GENERATE) if "cache_salt" in body]
    assert models == ["model", names[0], names[1], "model", names[2]]
    assert not fake.asked("/collective_rpc") and len(process.started) == 1
    loaded.close()


def test_a_wrong_adapter_is_caught(process: type[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another round, or ignored: the base answers."""
    monkeypatch.setattr(vllm_weights, "gpu_count", lambda: 1)
    loaded = policy(adapter(tmp_path / "first"), lora=LoraConfig(r=2))
    sample(loaded)
    for number, wrong in enumerate((tmp_path / "first", adapter(tmp_path / "idle", idle=True)), start=1):
        process.fakes[-1].mistaken = str(wrong)
        right = adapter(tmp_path / str(number), 5 + number)
        loaded.hand_over(right, str(number) * 64)
        sample(loaded)
        assert len(process.started) == 1 + number
        assert process.fakes[-1].adapters == {f"policy-{str(number) * 16}": str(right)}
    loaded.close()


@pytest.mark.parametrize("gpus", sampled([1, 0], 2))
def test_an_adapter_that_vllm_refuses_is_merged_and_goes_file_by_file(
    process: type[Process], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: int
) -> None:
    monkeypatch.setattr(vllm_weights, "gpu_count", lambda: gpus)
    process.without_adapters = True
    loaded = policy(lora=LoraConfig(r=2))
    sample(loaded)
    [server] = process.started
    assert server.adapters is None
    for number in (1, 2):
        loaded.hand_over(adapter(tmp_path / str(number), number), str(number) * 64)
        sample(loaded)
        assert process.fakes[0].files and not any(Path(each).exists() for each in process.fakes[0].files)
    assert len(process.started) == 1, "the probe says that the merged weights arrived"
    assert not [*SHARED_MEMORY.glob(f"crl-engine-*-{os.getpid()}-*")]
    loaded.close()


def test_weights_in_a_folder_that_are_gone_are_written_again(
    process: type[Process], tmp_path: Path, other: Path
) -> None:
    with serving(Honest(resolve_model("tiny").path)) as fake:
        loaded = policy(other, address=fake.address, folder=tmp_path)
        sample(loaded)
        [folder] = tmp_path.iterdir()
        for digest, gone in (("b" * 64, True), ("c" * 64, False)):
            if gone:
                shutil.rmtree(folder)
            else:
                os.utime(folder, (0, 0))
            loaded.hand_over(other, digest)
            sample(loaded)
            [folder] = tmp_path.iterdir()
            assert folder.stat().st_mtime > 0, "nobody takes it for left behind"
            assert [each.name for each in folder.iterdir()] == [digest[:16]], "what was replaced is gone"
        loaded.close()
        assert not folder.exists()


def test_elsewhere_the_head_is_a_tensor_of_its_own(process: type[Process], other: Path, tmp_path: Path) -> None:
    from safetensors.torch import load_file

    with serving(Honest(resolve_model("tiny").path)) as fake:
        loaded = policy(other, address=fake.address, folder=tmp_path)
        sample(loaded)
        written = {
            name: tensor
            for file in Path(str(fake.weights)).glob("*.safetensors")
            for name, tensor in load_file(file).items()
        }
        assert torch.equal(written["lm_head.weight"], written["model.embed_tokens.weight"])
        # Tied again, it is the model that was handed over: nothing else changed on the way.
        before = load_file(other / "model.safetensors")
        assert before.keys() == written.keys() - {"lm_head.weight"}
        assert all(torch.equal(before[name], written[name]) for name in before)
        loaded.close()


def test_weights_that_never_arrive_end_in_a_message(process: type[Process], other: Path) -> None:
    loaded = policy()
    sample(loaded)
    process.broken = True
    process.fakes[0].keeps = {"lm_head.weight"}
    loaded.hand_over(other, "b" * 64)
    with pytest.raises(WrongWeights, match=r"other weights than those of bbbbbbbbbbbb.*nats off") as raised:
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
    process.started[1].fake.scores = lambda ids: {7: None}
    process.broken, process.score = True, None  # nor does the third one give a score
    loaded.hand_over(None, "b" * 64)
    with pytest.raises(EngineDied, match=r"gave a score that is none .*; it was killed"):
        sample(loaded)
    loaded.close()


def test_a_running_server_is_used_as_it_is_and_outlives_the_policy(process: type[Process], other: Path) -> None:
    with serving(Honest(resolve_model("tiny").path)) as fake:
        loaded = policy(address=fake.address)
        sample(loaded)
        loaded.hand_over(other, "b" * 64)
        sample(loaded)
        assert fake.version == "b" * 64 and len(fake.asked("/collective_rpc")) == 2
        fake.keeps = {"lm_head.weight"}
        loaded.hand_over(None, "c" * 64)
        with pytest.raises(WrongWeights, match="has other weights than those of cccccccccccc"):
            sample(loaded)
        loaded.close()
        assert fake.asked("/health") == [] and not process.started


def test_a_running_server_that_was_started_again_in_another_mode_is_given_no_weights(other: Path) -> None:
    with serving(Honest(resolve_model("tiny").path)) as fake:
        loaded = policy(address=fake.address)
        sample(loaded)
        fake.logprobs_mode = "raw_logprobs"
        loaded.hand_over(other, "b" * 64)
        with pytest.raises(BadInput, match="reports other log-probabilities") as raised:
            sample(loaded)
        assert raised.value.where == "runtime.servers.<role>.address" and len(fake.asked("/collective_rpc")) == 1
        loaded.close()


def test_a_running_server_that_a_killed_engine_left_paused_goes_on(other: Path) -> None:
    with serving(Honest(resolve_model("tiny").path)) as fake:
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
    def refuse(*arguments: Any, **more: Any) -> None:
        raise refused

    run = RunDirectory.create_or_open(make_experiment(), tmp_path / "run")
    with serving(Honest(resolve_model("tiny").path)) as fake, Lease.acquire(run.path, seconds=60) as lease:
        for blocked in ("pieces", "own_folder"):
            loaded = policy(address=fake.address, folder=tmp_path / "shared")
            with monkeypatch.context() as patched, pytest.raises(kind) as raised:
                patched.setattr(vllm_weights, blocked, refuse)
                with run.begin(1, "collect", token=lease.token):
                    sample(loaded)
            assert raised.value.found.startswith("the weights cannot be handed over to a vLLM server: ")
            assert raised.value.where == str(tmp_path / "shared")
            assert "runtime.servers.<role>.folder" in str(raised.value)
            sample(loaded)
            loaded.close()


def test_shared_memory_that_is_full_is_named_and_the_server_that_has_a_part_is_ended(
    process: type[Process], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    loaded = policy(lora=LoraConfig(r=2))
    sample(loaded)
    loaded.hand_over(adapter(tmp_path / "adapter"), "b" * 64)

    def half(model: Path, checkpoint: Path, folder: Path, **more: Any) -> Iterator[Path]:
        files = pieces(model, checkpoint, folder, **more)
        yield next(files)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))

    with monkeypatch.context() as full:
        pieces = vllm_weights.pieces
        full.setattr(vllm_weights, "pieces", half)
        with pytest.raises(DiskFull, match="cannot be handed over") as raised:
            sample(loaded)
    where = Path(raised.value.where or "")
    assert where.name.startswith("crl-engine-") and not where.exists()
    assert not process.started[0].running
    sample(loaded)
    assert process.fakes[-1].version == "b" * 64 and process.started[0].starts == 2
    loaded.close()


def test_adapters_are_merged_for_a_server_elsewhere(process: type[Process], tmp_path: Path) -> None:
    with serving(Honest(resolve_model("tiny").path)) as fake:
        loaded = policy(adapter(tmp_path), address=fake.address, lora=LoraConfig(r=2))
        sample(loaded)
        assert fake.version == "a" * 64 and len(fake.asked("/collective_rpc")) == 1, "the probe says that it arrived"
        loaded.close()
        assert not process.started


def test_a_window_that_is_smaller_than_the_context_is_served(process: type[Process], tmp_path: Path) -> None:
    path = shutil.copytree(resolve_model("tiny").path, tmp_path / "model")
    write_windowed(path, 64)

    def load(context: int) -> Any:
        role = RoleConfig(model="forgetful", engine=VllmEngine(), context=context)
        return load_policy(role, path, None, threads=1, server=ServerConfig(), weights="a" * 64)

    assert load(65).context == 65 and not process.started


def test_the_probe_is_computed_on_the_cpu_in_what_the_cpu_can_whatever_gpu_is_there(
    process: type[Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    for place, able in {"computes_bfloat16": True, "cpu_computes_bfloat16": False}.items():
        monkeypatch.setattr(f"crl.policies.machine.{place}", lambda able=able: able)
        monkeypatch.setattr(vllm_weights, place, lambda able=able: able, raising=False)
    computed = []

    def scored(model: Any, texts: Any, following: Any = vllm_weights.following) -> Any:
        computed.append(model.dtype)
        return following(model, texts)

    monkeypatch.setattr(vllm_weights, "following", scored)
    role = RoleConfig(model="tiny", dtype="bfloat16", engine=VllmEngine())
    loaded = load_policy(role, resolve_model("tiny").path, None, threads=1, server=ServerConfig(), weights="a" * 64)
    assert isinstance(loaded, VllmPolicy)
    sample(loaded)
    assert computed == [torch.float32]
    loaded.close()
