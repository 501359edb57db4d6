"""The process of a vLLM server: started in an environment of its own, on a Unix socket, and ended with its engine.

The socket is in a folder that this user alone may enter: the endpoints that change weights ask for no key. What kills
the engine ends the server too (:mod:`crl.run.guardian`). Of its output the errors and the last lines are kept for
messages; nothing is logged.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crl.config import RoleConfig
from crl.config.engines import ServerConfig, interpreter
from crl.engine.process import ProcessGroup, describe_exit, own_folder
from crl.errors import BadInput, EngineDied
from crl.policies.machine import gpu_count
from crl.policies.served import GENERATE
from crl.policies.serving import Client
from crl.run.guardian import on_loopback

_TICK_SECONDS = 0.1
_STOP_SECONDS = 2.0
_LINES = 5
_ERROR = re.compile(r"\b\w*(Error|Exception): .+")
_PROBE_SECONDS = 60.0
_TOKENS_OF_A_PASS = 4096
_LOGPROBS_MODE = "processed_logprobs"
NAME = "model"
"""What a server that is started here calls the weights that are no adapter's."""
_EXTENSION = "vllm_worker.py"
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""Ranks of adapters that vLLM makes room for."""
_CERTAIN = 1e-3
"""Distance from 0, in nats, at which a log-probability still says that nothing else could be drawn."""


@dataclass(frozen=True, slots=True)
class Adapters:
    """How many adapters a server holds at a time, and the room for each."""

    count: int
    rank: int

    @classmethod
    def of(cls, roles: Sequence[RoleConfig]) -> Adapters | None:
        """Room for those of the roles; None where one of them has none, or a rank beyond vLLM's."""
        ranks = [role.lora.r for role in roles if role.lora is not None]
        room = next((rank for rank in _RANKS if rank >= max(ranks, default=0)), None)
        return None if room is None or len(ranks) < len(roles) else cls(len(ranks), room)


def check_server(role: str, server: ServerConfig, context: int) -> None:
    """Raise BadInput where vLLM can neither be reached nor started for a role, or takes fewer than `context` tokens."""
    if server.address is not None:
        client = Client(f"the server of role {role}", server, server.address)
        try:
            client.get("/weight_info", timeout=_PROBE_SECONDS)
            wrong = _short(client, role, context)
            if wrong is None and not paused(client):  # else nothing is sampled; an engine looks before it does
                wrong = wrong_logprobs(client, f"runtime.servers.{role}.address")
        except (BadInput, EngineDied) as error:
            raise BadInput(
                f"no vLLM server that takes weights answers at {server.address}: {error.found}",
                expected="a server in development mode (VLLM_SERVER_DEV_MODE=1); GET /weight_info and "
                f"POST {GENERATE} are answered",
                where=f"runtime.servers.{role}.address",
                next_step="start it (docs/engines.md has the command), or leave the address out",
            ) from None
        finally:
            client.close()
        if wrong is not None:
            raise wrong
        return
    python = interpreter(server)
    where = f"runtime.servers.{role}.python"
    if not python.is_file():
        raise BadInput(
            f"there is no environment with vLLM: {python} does not exist",
            expected="an interpreter that can import vllm",
            where=where,
            next_step="run `make vllm`, or name one: runtime.servers, or the variable CRL_VLLM_PYTHON",
        )
    command = [str(python), "-c", "import importlib.util as u; raise SystemExit(u.find_spec('vllm') is None)"]
    try:
        done = subprocess.run(command, env=_clean(), capture_output=True, timeout=_PROBE_SECONDS, check=False)
        found = "has no package vllm" if done.returncode else ""
    except (OSError, subprocess.TimeoutExpired) as error:
        found = f"does not start: {error}"
    if found:
        raise BadInput(
            f"{python} {found}",
            expected="an interpreter that can import vllm",
            where=where,
            next_step="run `make vllm`, or name another one",
        )
    if 0 < (there := gpu_count()) < server.tensor_parallel_size:
        raise BadInput(
            f"runtime.servers.{role}.tensor_parallel_size is {server.tensor_parallel_size}, and the GPUs here are "
            f"{there}",
            expected=f"at most {there}: a server runs on one machine",
            where=f"runtime.servers.{role}.tensor_parallel_size",
            next_step="lower it, or start the server elsewhere and name its address",
        )


def _short(client: Client, role: str, context: int) -> BadInput | None:
    """Why a running server refuses rows that fit the context of a role; None where it takes them, or does not say."""
    listed = client.get("/v1/models").get("data", ())
    longest = min((each["max_model_len"] for each in listed if each.get("max_model_len")), default=context)
    if longest >= context:
        return None
    return BadInput(
        f"{client.name} at {client.address} takes at most {longest} tokens, and the context is {context}",
        expected=f"at least {context}: a longer history would be refused in the middle of a round",
        where=f"runtime.servers.{role}.address",
        next_step=f"start it again with --max-model-len {context}, or lower method.roles.{role}.context",
    )


def paused(client: Client) -> bool:
    """Whether a running server lets requests wait: its weights are being replaced, or whoever did so was killed."""
    return bool(client.get("/is_paused", timeout=_PROBE_SECONDS)["is_paused"])


def wrong_logprobs(client: Client, where: str) -> BadInput | None:
    """Why the log-probabilities that a running server reports are not those that it samples with; None where they are.

    One that samples the only id that it is allowed must report 0. Prompts do not tell: they score alike in every mode.
    """
    told = []
    for index in (0, 1):  # without the restriction one of the two may be as good as certain, not both
        sampling = {"temperature": 1.0, "max_tokens": 1, "logprobs": 0, "allowed_token_ids": [index]}
        found = client.post(GENERATE, {"token_ids": [0], "sampling_params": {**sampling, "detokenize": False}})
        with client.reading("an answer without log-probabilities"):
            told.append(float(found["choices"][0]["logprobs"]["content"][0]["logprob"]))
    if all(abs(each) < _CERTAIN for each in told):
        return None
    return BadInput(
        f"{client.name} at {client.address} reports other log-probabilities than those that it samples with: "
        f"{min(told):.3g} for a token that alone was allowed",
        expected=f"0, as with --logprobs-mode {_LOGPROBS_MODE}; vLLM's default is raw_logprobs",
        where=where,
        next_step=f"start it again with --logprobs-mode {_LOGPROBS_MODE} (docs/engines.md has the command)",
    )


class VllmServer:
    """One server process, started on the weights of a directory; `adapters` may be loaded beside them."""

    def __init__(
        self, name: str, server: ServerConfig, role: RoleConfig, threads: int, adapters: Adapters | None = None
    ) -> None:
        self.name, self.config, self._role, self._threads = name, server, role, threads
        self.adapters = adapters
        self._folder = own_folder()
        self._process: ProcessGroup | None = None
        self._errors: list[str] = []
        self._asleep = False
        self.answers: dict[str, Any] = {}
        """What whoever samples from it keeps of what it was given, by owner."""
        self.starts = 0
        """How often it was started: what an earlier process was given is gone."""
        self.client: Client | None = None
        """The connection, while it runs."""

    @property
    def running(self) -> bool:
        """Whether the process lives."""
        return self._process is not None and self._process.running

    @property
    def pid(self) -> int | None:
        """Its process id."""
        return None if self._process is None else self._process.pid

    @property
    def refuses_adapters(self) -> bool:
        """Whether what it wrote before it ended was about adapters: vLLM has none for every architecture."""
        return self.adapters is not None and any("lora" in line.lower() for line in self._errors)

    def start(self, weights: Path) -> Client:
        """Start it on a directory of weights and wait until it is ready. Raises EngineDied where it is not."""
        self.kill()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        socket = self._folder / "socket"
        socket.unlink(missing_ok=True)
        shutil.copy(Path(__file__).with_name(_EXTENSION), self._folder)
        self._process = ProcessGroup(
            command_line(interpreter(self.config), weights, socket, self._role, self.config, self.adapters),
            name=self.name,
            environment={**environment(self.config, self._threads), "PYTHONPATH": str(self._folder)},
            folder=self._folder,
            on_line=self._hear,
        )
        self._errors, self._asleep = [], False
        self.starts += 1
        self._process.start()
        self.client = Client(self.name, self.config, "http://localhost", socket=str(socket))
        while not self.client.healthy():
            if not self._process.running:
                raise self.died("did not start: it")
            if self._process.age_seconds > self.config.start_seconds:
                raise self.died(f"did not start within {self.config.start_seconds:.0f} s; it")
            time.sleep(_TICK_SECONDS)
        return self.client

    def sleep(self) -> None:
        """Give its share of the GPUs back until it is woken; its weights wait in the host's memory."""
        # On a CPU vLLM only lets requests wait: nothing would be freed.
        if self.client is None or not self.running or self._asleep or not gpu_count():
            return
        try:
            self.client.post("/sleep?level=1", None, timeout=self.config.start_seconds)
            self._asleep = True
        except (BadInput, EngineDied):
            self.kill()  # the memory is needed now; it is started again

    def awake(self) -> Client | None:
        """The connection to it, woken where it slept; None: it does not run. Raises EngineDied where it will not."""
        if self.client is None or not self.running:
            return None
        if self._asleep:
            self.client.post("/wake_up", None, timeout=self.config.start_seconds)
            self._asleep = False
        return self.client

    @property
    def rests(self) -> bool:
        """Whether it needs memory of a GPU that it does not have now: it was not started, or sleeps."""
        return not self.running or self._asleep

    def died(self, what: str) -> EngineDied:
        """The error that says what became of it, with its last lines. What is left of it is ended."""
        assert self._process is not None
        code = self._process.wait(0.0)
        state = "was ended" if self._process.running else describe_exit(code)
        # Errors first: what broke is said once, and then a hundred lines of what followed from it.
        lines = "\n  ".join(self._errors or self._process.last_lines(_LINES))
        self.kill()
        return EngineDied(
            f"{self.name} {what} {state}",
            where=f"what it wrote:\n  {lines}" if lines else "it wrote nothing",
            next_step="it is started again; if it fails again, read its lines; `crl doctor EXPERIMENT` checks it",
        )

    def _hear(self, text: str) -> None:
        # Every server without a tokenizer warns of an exception of its chat template.
        found = None if " WARNING " in text else _ERROR.search(text)
        if found is not None and len(self._errors) < _LINES and found[0] not in self._errors:
            self._errors.append(found[0])

    def kill(self) -> None:
        """End it now, with what it started."""
        if self.client is not None:
            self.client.close()
            self.client = None
        if self._process is not None:
            self._process.stop(_STOP_SECONDS, whole=True)

    def stop(self) -> None:
        """End it, and remove its folder. It can be started again."""
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)


def command_line(
    python: Path,
    weights: Path,
    socket: Path,
    role: RoleConfig,
    server: ServerConfig,
    adapters: Adapters | None = None,
) -> list[str]:
    """How a server is started. `vllm serve` is not used: the CPU build of 0.32 has no metadata under that name."""
    words = [
        str(python), "-m", "vllm.entrypoints.openai.api_server",
        "--model", str(weights),
        "--served-model-name", NAME,
        "--uds", str(socket),
        "--dtype", role.dtype,
        "--max-model-len", str(role.context),
        "--tokens-only",
        "--logprobs-mode", _LOGPROBS_MODE,
        # The checkpoint's generation_config would else change what is sampled.
        "--generation-config", "vllm",
        "--seed", "0",
        "--uvicorn-log-level", "warning",
        "--worker-extension-cls", f"{_EXTENSION.removesuffix('.py')}.Worker",
    ]  # fmt: skip
    if adapters is not None:
        # One more in memory: the next one of a role is checked before the last one goes.
        words += ["--enable-lora", "--max-lora-rank", str(adapters.rank), "--max-loras", str(adapters.count)]
        words += ["--max-cpu-loras", str(adapters.count + 1)]
    if gpu_count():
        words += [
            "--enable-sleep-mode",
            "--tensor-parallel-size",
            str(server.tensor_parallel_size),
            "--gpu-memory-utilization",
            str(server.gpu_memory_utilization),
        ]
    else:
        words.append("--enforce-eager")  # compiling for the CPU takes minutes and gains little
        # The worker in the engine's process: one process less starts, and none meets another in shared memory.
        words += ["--distributed-executor-backend", "uni"]
        # A prompt that one pass cannot hold would be read in two, after which vLLM 0.32 turns the request's generator
        # back: on a CPU it cannot, and its engine ends ("CPU Generator does not use offset").
        words += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", str(max(role.context, _TOKENS_OF_A_PASS))]
    return words


def environment(server: ServerConfig, threads: int) -> dict[str, str]:
    """What is added to the environment of a server."""
    return {
        **_overrides(),
        # Its processes meet here; by default at the address that the machine would reach the world from.
        **on_loopback(),
        "VLLM_HOST_IP": "127.0.0.1",
        "VLLM_SERVER_DEV_MODE": "1",  # the endpoints that take weights; the socket's folder keeps others out
        "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_CPU_KVCACHE_SPACE": str(server.cache_gigabytes),
        # vLLM would bind its threads to cores of its choice, beside whatever else runs there.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        # Its processes set titles, which by default are written over the environment that the guardian finds them by.
        "SPT_NOENV": "1",
        # Without a GPU the first request would wait a minute for a compiler, for a count that nobody asks for.
        **({} if gpu_count() else {"TORCH_COMPILE_DISABLE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}),
    }


def _overrides() -> dict[str, str]:
    # The import path of this process is of another environment.
    return {"PYTHONPATH": "", "PYTHONHOME": ""} if "PYTHONHOME" in os.environ else {"PYTHONPATH": ""}


def _clean() -> Mapping[str, str]:
    return {**os.environ, **_overrides()}
