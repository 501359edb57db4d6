"""The process of a vLLM server: how it is started, known to be ready, and ended. A script stands in for vLLM."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import psutil
import pytest

from crl.config import LoraConfig, RoleConfig
from crl.config.engines import INTERPRETER, ServerConfig, interpreter
from crl.engine.process import own_folder, shared_memory
from crl.engine.vllm_server import Adapters, VllmServer, check_server, command_line
from crl.errors import BadInput, EngineDied
from crl.policies.served import GENERATE
from tests.fake_vllm import serving
from tests.processes import wait_until

STAND_IN = """
import json, os, socketserver, subprocess, sys
from http.server import BaseHTTPRequestHandler

words = sys.argv[1:]
if words[0] == "-c":
    sys.exit(0)
option = dict(zip(words[2::2], words[3::2]))
mood = open(os.path.join(option["--model"], "mood")).read()
if mood == "broken":
    print("(APIServer) WARNING 11-22 ValueError: no tokenizer for the warm-up")
    print("(Worker) ERROR RuntimeError: no such head size", flush=True)
    print("and what follows from it", flush=True)
    sys.exit(7)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if mood == "hanging":
    child.wait()

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        seen = {"words": words, "child": child.pid, "environment": dict(os.environ)}
        content = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
    def address_string(self):
        return ""
    def log_message(self, *arguments):
        pass

socketserver.ThreadingUnixStreamServer(option["--uds"], Handler).serve_forever()
"""


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that has no vLLM and runs the script in its place."""
    script, path = tmp_path / "vllm.py", tmp_path / "python"
    script.write_text(STAND_IN)
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -S {shlex.quote(str(script))} "$@"\n')
    path.chmod(0o755)
    return path


def weights(tmp_path: Path, mood: str) -> Path:
    (tmp_path / "mood").write_text(mood)
    return tmp_path


def server(python: Path, **settings: float) -> VllmServer:
    role = RoleConfig(model="tiny", dtype="bfloat16", context=77)
    return VllmServer("the server", ServerConfig(python=python, **settings), role, threads=3)


def test_it_is_started_on_a_socket_of_this_user_and_leaves_nothing_behind(tmp_path: Path, python: Path) -> None:
    started = server(python, cache_gigabytes=2)
    client = started.start(weights(tmp_path, "fine"))
    seen = client.get("/seen")
    words, child, environment = seen["words"], psutil.Process(seen["child"]), seen["environment"]
    assert words[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    options = dict(zip(words[2::2], words[3::2], strict=False))
    assert options["--dtype"] == "bfloat16" and options["--max-model-len"] == "77"
    assert {"--tokens-only", "processed_logprobs"} <= set(words)
    folder = Path(options["--uds"]).parent
    assert folder.stat().st_mode & 0o077 == 0, "nobody else may enter"
    assert environment["PYTHONPATH"] == str(folder), "with the module that vLLM is extended by, and nothing else"
    assert {each.name for each in folder.iterdir()} == {"socket", "vllm_worker.py"}
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["VLLM_CPU_KVCACHE_SPACE"] == "2" and environment["SPT_NOENV"] == "1"
    # vLLM's processes outlive the first one; the group does not.
    os.kill(started.pid or 0, signal.SIGKILL)
    wait_until(lambda: not started.running, "the killed server still runs")
    assert child.is_running()
    again = started.start(tmp_path)
    gone = (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    wait_until(lambda: not child.is_running() or child.status() in gone, "what it started lives on")
    assert again.get("/seen")["child"] != child.pid and started.running
    started.stop()
    assert not started.running and not folder.exists()


def test_one_that_does_not_start_is_named_with_the_error_that_it_wrote(tmp_path: Path, python: Path) -> None:
    with pytest.raises(EngineDied, match="did not start: it ended with exit code 7") as raised:
        server(python).start(weights(tmp_path, "broken"))
    assert raised.value.transient
    assert str(raised.value.where).endswith("RuntimeError: no such head size"), "and not what followed from it"


@pytest.mark.slow
def test_one_that_hangs_while_it_starts_is_ended(tmp_path: Path, python: Path) -> None:
    started = server(python, start_seconds=1)
    with pytest.raises(EngineDied, match="did not start within 1 s; it was ended"):
        started.start(weights(tmp_path, "hanging"))
    assert not started.running
    started.stop()


def test_what_is_missing_is_said_before_anything_is_started(
    tmp_path: Path, python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_server("actor", ServerConfig(python=python), 512)
    with pytest.raises(BadInput, match="there is no environment with vLLM") as raised:
        check_server("actor", ServerConfig(python=tmp_path / "none"), 512)
    assert "make vllm" in str(raised.value) and raised.value.where == "runtime.servers.actor.python"
    with pytest.raises(BadInput, match="has no package vllm"):
        check_server("actor", ServerConfig(python=Path(sys.executable)), 512)
    for there, wanted in ((0, 4), (4, 4)):
        monkeypatch.setattr("crl.engine.vllm_server.gpu_count", lambda there=there: there)
        check_server("actor", ServerConfig(python=python, tensor_parallel_size=wanted), 512)
    with pytest.raises(BadInput, match="tensor_parallel_size is 8, and the GPUs here are 4"):
        check_server("actor", ServerConfig(python=python, tensor_parallel_size=8), 512)
    monkeypatch.setenv(INTERPRETER, str(tmp_path / "named"))
    assert interpreter(ServerConfig()) == tmp_path / "named"
    assert interpreter(ServerConfig(python=python)) == python


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    own = own_folder(tmp_path)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    left = tmp_path / own.name.replace(str(os.getpid()), str(ended.pid))
    elsewhere = tmp_path / f"crl-engine-00000000-{ended.pid}-a"
    for each in (left, elsewhere, tmp_path / "crl-engine-mine"):
        each.mkdir()
    again = own_folder(tmp_path)
    assert {each.name for each in tmp_path.iterdir()} == {own.name, again.name, elsewhere.name, "crl-engine-mine"}
    assert again.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(shared_memory(1) is None, reason="no shared memory here")
def test_what_a_killed_process_had_in_shared_memory_is_removed_at_once() -> None:
    script = """
import time
from crl.engine.process import own_folder, shared_memory
folder = own_folder(shared_memory(1))
(folder / "piece").write_bytes(b"1")
print(folder, flush=True)
time.sleep(600)
"""
    words = [sys.executable, "-c", script]
    holder = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert holder.stdout is not None
    folder = Path(holder.stdout.readline().strip())
    assert (folder / "piece").is_file()
    holder.kill()
    holder.wait()
    wait_until(lambda: not folder.exists(), "its guardian left it")


def test_what_another_machine_left_in_a_shared_folder_is_removed_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was started again, or a pod of another name, is another one; its folders were never removed."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old, new = (tmp_path / f"crl-engine-00000000-1-{name}" for name in ("old", "new"))
    for each, age in ((old, 90_000), (new, 80_000)):
        each.mkdir()
        (each / "model.safetensors").touch()
        os.utime(each, (time.time() - age,) * 2)
    monkeypatch.setattr("psutil.boot_time", lambda: time.time() - 200_000)
    own = {own_folder().name}
    assert old.exists(), "sockets are in /tmp, and a server that is well may not touch its own for longer"
    own.add(own_folder(tmp_path).name)
    assert {each.name for each in tmp_path.iterdir()} == {*own, new.name}
    monkeypatch.setattr("psutil.boot_time", lambda: time.time() - 70_000)
    own.add(own_folder().name)
    assert {each.name for each in tmp_path.iterdir()} == own, "nothing that lives is older than the machine's start"


def test_a_running_server_must_take_weights() -> None:
    with serving() as fake:
        check_server("actor", ServerConfig(address=fake.address), 512)
        fake.faults["/weight_info"] = lambda body: (404, {})
        with pytest.raises(BadInput, match=r"no vLLM server that takes weights .* with 404") as raised:
            check_server("actor", ServerConfig(address=fake.address), 512)
        assert "VLLM_SERVER_DEV_MODE=1" in str(raised.value)
    with pytest.raises(BadInput, match="cannot be reached"):
        check_server("actor", ServerConfig(address=fake.address), 512)


def test_a_running_server_must_take_rows_as_long_as_the_role_has() -> None:
    with serving() as fake:
        check_server("actor", ServerConfig(address=fake.address), fake.longest)
        with pytest.raises(BadInput, match="takes at most 4096 tokens, and the context is 4097") as raised:
            check_server("actor", ServerConfig(address=fake.address), fake.longest + 1)
        assert raised.value.where == "runtime.servers.actor.address"
        assert "--max-model-len 4097" in str(raised.value.next_step)


def test_a_running_server_must_report_what_it_samples_with() -> None:
    with serving() as fake:
        fake.logprobs_mode = "raw_logprobs"
        with pytest.raises(BadInput, match=r"of role actor at .* reports other .*: -0\.1 for a token") as raised:
            check_server("actor", ServerConfig(address=fake.address), 512)
        assert raised.value.where == "runtime.servers.actor.address"
        assert "--logprobs-mode processed_logprobs" in str(raised.value.next_step)
        fake.faults[GENERATE] = lambda body: (200, {"choices": [{"token_ids": [0], "logprobs": None}]})
        with pytest.raises(BadInput, match=r"no vLLM server that takes weights .* without log-probabilities"):
            check_server("actor", ServerConfig(address=fake.address), 512)


def test_a_running_server_that_is_given_weights_right_now_is_neither_refused_nor_woken() -> None:
    with serving() as fake:
        fake.paused, fake.logprobs_mode = True, "raw_logprobs"
        check_server("actor", ServerConfig(address=fake.address), 512)
        assert fake.paused and not fake.asked("/resume") and not fake.asked(GENERATE)


@pytest.mark.parametrize("context", [512, 8192])
def test_on_a_cpu_no_prompt_is_read_in_parts(context: int, monkeypatch: pytest.MonkeyPatch) -> None:
    role = RoleConfig(context=context)

    def words(gpus: int) -> list[str]:
        monkeypatch.setattr("crl.engine.vllm_server.gpu_count", lambda: gpus)
        return command_line(Path("python"), Path("weights"), Path("socket"), role, ServerConfig())

    found = words(0)
    assert "--no-enable-chunked-prefill" in found
    assert int(found[found.index("--max-num-batched-tokens") + 1]) >= context, "vLLM refuses a budget below the context"
    assert "--no-enable-chunked-prefill" not in words(1) and "--enable-sleep-mode" in words(1)


def test_adapters_have_room_for_the_next_one() -> None:
    roles = [RoleConfig(lora=LoraConfig(r=rank)) for rank in (4, 24)]
    assert Adapters.of(roles) == Adapters(2, 32) and Adapters.of([roles[0]]) == Adapters(1, 8)
    assert Adapters.of([*roles, RoleConfig()]) is None and Adapters.of([RoleConfig(lora=LoraConfig(r=513))]) is None
    words = command_line(Path("python"), Path("base"), Path("socket"), roles[0], ServerConfig(), Adapters.of(roles))
    options = dict(pairwise(words))
    assert (options["--max-loras"], options["--max-cpu-loras"], options["--max-lora-rank"]) == ("2", "3", "32")
