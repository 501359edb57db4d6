"""The weights of a round on a vLLM server: how it gets them while it lives, and how that is proven.

The committed checkpoint is the truth, and a server that was started here reads it where it is: full weights in place of
those it has, on a GPU an adapter under a name of its own. Nothing is copied. Such a server is started on the base
model, one per set of weights or per base that several adapters stand on, and ends with its engine. On a CPU, and where
vLLM refuses it, an adapter is merged and handed over file by file, through shared memory; so are the weights of a
server elsewhere, in a folder that both see.

Before a server is asked, the same files are read here: what is missing, cut short or of another shape would break it,
or leave part of the old weights. Afterwards a fixed probe is scored by both. One that has other weights then, or died,
is started again once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError

from crl.config import Method, RoleConfig
from crl.config.engines import ServerConfig
from crl.config.models import ADAPTER_WEIGHTS, is_adapter, pretrained
from crl.config.vocabulary import rows_of_model
from crl.engine.process import own_folder, shared_memory
from crl.engine.vllm_server import NAME, Adapters, VllmServer, paused, wrong_logprobs
from crl.errors import BadInput, CrlError, DiskFull, EngineDied, RecordDamaged, RunDirectoryUnusable, WrongWeights
from crl.limits import MEGABYTE
from crl.policies.handover import pieces
from crl.policies.language_model import load_model
from crl.policies.machine import cpu_computes_bfloat16, gpu_count
from crl.policies.served import GENERATE, Adapter
from crl.policies.serving import Client
from crl.run.files import disk_error

Answer = NDArray[np.float32]
"""Log-probabilities of what may follow each of the probe's texts, [B, V]."""
Stated = list[dict[int, float]]
"""Those that a server tells, of the likeliest ids."""
_PROBE_SEQUENCES, _PROBE_TOKENS = 4, 24
_LIKELIEST = 20
"""As many as vLLM tells by default. It does not score prompts right where several have adapters (0.32)."""
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}
"""Largest mean difference of the probe's log-probabilities, in nats. In float32 it is 1e-6 on a CPU, and more between
two kernels of a GPU. In bfloat16 two passes of SmolLM2 differ by 0.07. An old output head is 0.5 off or more."""
_SPREAD, _LEAST = 10.0, 1e-5
"""Later ones may be so many times as large as the first one of the process was, and always this large: a tensor that
stayed behind moves the probe by less than two engines may differ."""
_NEARER = 4.0
"""A server that is so many times nearer to the answer of other weights has those: of the weights before, of the base
without the adapter, of another role's. What two engines differ by does not point that way."""
_PIECE_BYTES = 1_200 * MEGABYTE
"""Room for one file of a model of 7B: its embeddings are the largest."""
_BELOW = "base"
"""Label of the weights below adapters."""


class VllmServers:
    """The servers that an engine starts, and what each has. They outlive the policies that sample from them."""

    def __init__(self) -> None:
        self._servers: dict[str, VllmServer] = {}
        self._weights: dict[str, ServedWeights] = {}

    def weights(
        self, owner: str, roles: Mapping[str, RoleConfig], model_path: Path, config: ServerConfig, threads: int
    ) -> ServedWeights:
        """Those of an owner, on the server of these `roles` with weights of their own on one base."""
        if owner not in self._weights:
            role = roles[owner].model_copy(update={"context": max(each.context for each in roles.values())})

            def server(key: str, adapters: Adapters | None) -> VllmServer:
                if key not in self._servers:
                    name = f"the vLLM server of {role.model}"
                    self._servers[key] = VllmServer(name, config, role, threads, adapters)
                return self._servers[key]

            # On a CPU vLLM 0.32 adds the last adapter to what is asked of the base beside it, and does not say so.
            adapters = Adapters.of([*roles.values()]) if gpu_count() else None
            shared = partial(server, owner if adapters is None else min(roles), adapters)
            self._weights[owner] = ServedWeights(
                owner, role, model_path, config, shared, partial(server, f"{owner} alone", None)
            )
        return self._weights[owner]

    @property
    def rests(self) -> bool:
        """Whether one of them needs memory of a GPU that it does not have now."""
        return any(weights.rests for weights in self._weights.values())

    def sleep(self) -> None:
        """Have all give their memory of GPUs back until they are next sampled from."""
        for server in self._servers.values():
            server.sleep()

    def close(self) -> None:
        """End them."""
        for weights in self._weights.values():
            weights.close()
        for server in self._servers.values():
            server.stop()
        self._weights.clear()
        self._servers.clear()


def roles_beside(
    method: Method, owner: str, config_of: Callable[[str], ServerConfig]
) -> tuple[dict[str, RoleConfig], ServerConfig]:
    """The roles with weights of their own that a server holds together with those of an owner, and what it is told."""
    mine, base, config = method.role(owner), method.base(owner), config_of(owner)
    found = {}
    for other in method.owners():
        role = method.role(other)
        beside = base is not None and method.base(other) == base and config_of(other) == config
        if other == owner or (beside and (role.engine, role.dtype) == (mine.engine, mine.dtype)):
            longest = max(method.role(name).context for name in method.roles if method.owner(name) == other)
            found[other] = role.model_copy(update={"context": longest})
    return found, config


class ServedWeights:
    """One set of weights behind a server, for all roles that have it."""

    def __init__(
        self,
        owner: str,
        role: RoleConfig,
        model_path: Path,
        config: ServerConfig,
        server: Callable[[], VllmServer],
        alone: Callable[[], VllmServer],
    ) -> None:
        """`server`: makes the one that is shared with other adapters; `alone` one without any. Neither is called where
        the config has an address."""
        from transformers import AutoConfig

        self._owner, self._role, self._model_path, self._config = owner, role, model_path.resolve(), config
        self._name = f"the vLLM server of {role.model}"
        self._server = server() if config.address is None else None
        self._alone = alone
        self._remote: Client | None = None
        of_model = pretrained(AutoConfig, model_path, role.model)
        self._probe = _probe(rows_of_model(of_model))
        self._quantized = hasattr(of_model, "quantization_config")
        self._checkpoint: Path | None = None
        self._weights = ""
        self._proven = (0, "")
        """The start of the server, and the digest of the weights, that the probe showed last."""
        self._adapter: Adapter | None = None
        self._answer: tuple[str, Answer] = ("", np.empty((0, 0), np.float32))
        """The probe's, by the weights of this digest."""
        self._others: dict[str, Answer] = {}
        """The probe's by other weights that the server may have instead."""
        self._first = (-1, 0.0)
        """How far the first answer of a process was off, by its start."""
        self._folder: Path | None = None

    @property
    def server_pid(self) -> int | None:
        """Process id of the server that was started here."""
        return None if self._server is None else self._server.pid

    @property
    def _adapted(self) -> bool:
        """Whether the weights are an adapter."""
        return self._checkpoint is not None and is_adapter(self._checkpoint)

    @property
    def rests(self) -> bool:
        """Whether the server needs memory of a GPU that it does not have now."""
        return self._server is not None and self._server.rests

    def hand_over(self, checkpoint: Path | None, weights: str) -> None:
        """From now on the weights of a checkpoint or (None) of the base, with this digest; they go to the server when
        it is next sampled from."""
        self._checkpoint = None if checkpoint is None else checkpoint.resolve()
        self._weights = weights

    def ready(self) -> tuple[Client, Adapter | None]:
        """The connection to a server that has the weights, and the name of the adapter that is them.

        Raises EngineDied where there is no server, WrongWeights where it keeps others.
        """
        client = self._elsewhere() if self._server is None else self._here(self._server)
        return client, self._adapter

    def failed(self, error: EngineDied) -> EngineDied:
        """An answer did not come, or cannot be: the server is ended, and the next session starts another one."""
        self._proven = (0, "")
        if self._server is None:
            return error
        died = self._server.died(f"{error.found.partition(self._name)[2].strip()}; it")
        return EngineDied(died.found, expected=error.expected, where=died.where, next_step=died.next_step)

    def close(self) -> None:
        """Forget what was handed over; the server is its maker's."""
        self._proven = (0, "")
        self._others.clear()
        if self._remote is not None:
            self._remote.close()
            self._remote = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- a server that was started here ----------------------------------------------------------------------------

    def _here(self, server: VllmServer) -> Client:
        lived = server.running
        try:
            client = server.awake() or server.start(self._origin())
            if self._proven != (server.starts, self._weights):
                try:
                    self._give(client, server)
                except EngineDied as error:
                    raise self.failed(error) from None
                except (DiskFull, RunDirectoryUnusable):  # it has a part of the weights
                    server.kill()
                    raise
            return client
        except (EngineDied, WrongWeights) as error:
            server.kill()
            if lived:  # what went wrong in place need not when it is started
                return self._here(server)
            if server.adapters is not None and (isinstance(error, WrongWeights) or server.refuses_adapters):
                self._server = self._alone()
                return self._here(self._server)
            raise

    def _origin(self) -> Path:
        """What a process is started on: the base, unless its numbers are packed and those of the weights no longer."""
        trained = self._checkpoint if self._quantized and not self._adapted else None
        return trained or self._model_path

    def _give(self, client: Client, server: VllmServer) -> None:
        """Hand the weights over, and have the probe show that they arrived."""
        expected = self._expected()
        new, before = self._proven[0] != server.starts, self._adapter
        self._proven, self._adapter = (0, ""), None
        if server.adapters is not None:
            _label(client, _BELOW)
            self._adapter = self._load(client, server)
        elif new and self._origin() == (self._checkpoint or self._model_path):  # a new process has those
            _label(client, self._weights)
        else:
            self._reload(client, self._calls())
        self._require(client, expected, server.starts, server.answers)
        self._proven = (server.starts, self._weights)
        if before is not None and before.name not in (NAME, getattr(self._adapter, "name", None)) and not new:
            client.post("/v1/unload_lora_adapter", {"lora_name": before.name})

    def _load(self, client: Client, server: VllmServer) -> Adapter:
        """Have a server load an adapter beside the others, where the weights are not the base's."""
        if self._checkpoint is None:
            return Adapter(NAME, _BELOW)
        adapter = Adapter(f"{self._owner}-{self._weights[:16]}", _BELOW)
        asked = {"lora_name": adapter.name, "lora_path": str(self._checkpoint)}
        try:
            client.post("/v1/load_lora_adapter", asked, timeout=self._config.start_seconds)
        except (BadInput, EngineDied) as error:
            if not server.running:
                raise
            raise self._wrong(f"does not take the adapter: {error.found}") from None
        return adapter

    def _calls(self) -> Iterator[tuple[str, Mapping[str, str]]]:
        """What a server's worker is asked for, one after the other, to have the weights."""
        if not self._adapted:
            yield "read_weights", {"directory": str(self._checkpoint or self._model_path)}
            return
        yield "begin_files", {}
        folder = own_folder(shared_memory(_PIECE_BYTES))
        try:
            with _writing(folder, "make room there"), closing(self._pieces(folder, untied=False)) as files:
                for file in files:
                    yield "take_file", {"file": str(file)}
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        yield "end_files", {}

    # -- a server elsewhere ----------------------------------------------------------------------------------------

    def _elsewhere(self) -> Client:
        assert self._config.address is not None
        if self._remote is None:
            self._remote = Client(self._name, self._config, self._config.address)
        client = self._remote
        if self._proven[1] != self._weights:
            if paused(client):
                # Whoever paused it was killed before it could go on: a request would wait for ever. Where another
                # shard loads the same weights right now, that goes on: requests wait while it does.
                client.post("/resume", None)
            # Asked again with all weights: the server may have been started anew, and the probe does not see it.
            wrong = wrong_logprobs(client, "runtime.servers.<role>.address")
            if wrong is not None:
                raise wrong
            expected = self._expected()
            self._proven = (0, "")
            self._reload(client, [("reload_weights", {"weights_path": str(self._written())})])
            self._require(client, expected, 0, self._others)
            self._proven = (0, self._weights)
        return client

    def _written(self) -> Path:
        """A directory with all weights; a server takes them from there whatever it knows of tied ones."""
        with _writing(self._config.folder or Path(tempfile.gettempdir())):
            if self._folder is None or not self._folder.is_dir():
                if self._config.folder is not None:
                    self._config.folder.mkdir(parents=True, exist_ok=True)
                self._folder = own_folder(self._config.folder)
            os.utime(self._folder)  # who shares its parent takes what is old for left behind
            directory = self._folder / self._weights[:16]
            for other in self._folder.iterdir():
                if other != directory:
                    shutil.rmtree(other)
            if not directory.is_dir():
                half = self._folder / "half"
                with closing(self._pieces(half, untied=True)) as files:
                    for file in files:
                        file.rename(file.with_name(f"model-{file.name}"))
                half.rename(directory)
        return directory

    # -- both ------------------------------------------------------------------------------------------------------

    def _pieces(self, folder: Path, *, untied: bool) -> Any:
        dtype = getattr(torch, self._role.dtype)
        return pieces(self._model_path, self._checkpoint, folder, dtype=dtype, untied=untied, label=self._weights)

    def _reload(self, client: Client, calls: Iterable[tuple[str, Mapping[str, str]]]) -> None:
        """Have a running server take weights in place; nothing that it read before is used again."""
        limit = {"timeout": self._config.start_seconds}
        try:
            client.post("/pause?mode=wait", None, **limit)
            for method, words in calls:
                client.post("/collective_rpc", {"method": method, "kwargs": words}, **limit)
            client.post("/reset_prefix_cache", None, **limit)
            _label(client, self._weights)
        except BaseException:
            with suppress(Exception):  # what went wrong first says more
                client.post("/resume", None, **limit)
            raise
        client.post("/resume", None, **limit)

    def _expected(self) -> Answer:
        """The probe's answer by the committed files, which are read whole for it."""
        if self._answer[0] != self._weights:
            adapter = self._checkpoint if self._adapted else None
            with _read(self._checkpoint or self._model_path):
                dtype = getattr(torch, self._role.dtype)
                model = load_model(self._model_path, None if adapter else self._checkpoint, dtype=dtype).eval()
                if not cpu_computes_bfloat16():  # this copy stays on the CPU: a hundredth of the time
                    model = model.float()
                if adapter is not None:
                    if _BELOW not in self._others:  # the base stays as it is
                        self._others[_BELOW] = following(model, self._probe)
                    _put_on(model, adapter)
                self._answer = (self._weights, following(model, self._probe))
        return self._answer[1]

    def _require(self, client: Client, expected: Answer, start: int, others: dict[str, Answer]) -> None:
        """Raise WrongWeights where the server scores the probe as other weights would."""
        told = client.all(partial(_told, client, self._adapter), self._probe)
        gap, limit = _apart(expected, told), TOLERANCE[self._role.dtype]
        if self._first[0] == start:
            limit = min(limit, max(_SPREAD * self._first[1], _LEAST))
        kept = any(_apart(other, told) * _NEARER < gap for other in (*self._others.values(), *others.values()))
        if kept or not gap <= limit:  # also where it is no number
            raise self._wrong(
                f"has other weights than those of {self._weights[:12]}: its log-probabilities of a fixed probe are "
                f"{gap:.2g} nats off on average" + (", and those of weights that it had" if kept else ""),
                f"the new weights' own, but for at most {limit:.2g} between two engines in {self._role.dtype}",
            )
        if self._first[0] != start:
            self._first = (start, gap)
        others[self._owner] = expected

    def _wrong(self, what: str, expected: str | None = None) -> WrongWeights:
        return WrongWeights(
            f"{self._name} {what}",
            expected=expected,
            where=self._config.address or "a server that was started here, and started again",
            next_step="nothing was sampled; use the engine transformers for this model, or another version of vLLM",
        )


def _put_on(model: Any, adapter: Path) -> None:
    """Put an adapter on a model. Raises ValueError where a tensor of it is missing."""
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    # Read first: peft looks elsewhere for a file that is missing.
    with safe_open(adapter / ADAPTER_WEIGHTS, "pt") as file:
        names = {*file.keys()}
    adapted = PeftModel.from_pretrained(model, adapter).eval()
    missing = sorted(get_peft_model_state_dict(adapted, save_embedding_layers=False).keys() - names)
    if missing:  # peft only warns
        raise ValueError(f"{missing[0]} is missing")


@contextmanager
def _read(weights: Path) -> Iterator[None]:
    """What cannot be read, or does not fit, is damaged: no server is asked for it."""
    try:
        yield
    except CrlError:
        raise
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise RecordDamaged(
            f"weights for a vLLM server cannot be read: {(str(error) or repr(error)).splitlines()[0]}",
            expected="all tensors of the model, in their shapes",
            where=str(weights),
            next_step="`crl verify` names the damaged file and the command that mends it",
        ) from error


@contextmanager
def _writing(
    folder: Path,
    advice: str = "make room or give access there, or name another folder: runtime.servers.<role>.folder",
) -> Iterator[None]:
    """Where the block cannot write weights into a folder, the error names it: a stage would name the run directory's
    disk."""
    try:
        yield
    except Exception as error:
        known = disk_error(error, folder)
        if known is None:
            raise
        raise type(known)(
            f"the weights cannot be handed over to a vLLM server: {known.found}",
            expected=known.expected,
            where=str(folder),
            next_step=f"{advice}; then `crl resume`",
        ) from error


def _label(client: Client, version: str) -> None:
    client.post("/update_weight_version", {"new_version": version})


def _probe(vocabulary: int) -> list[list[int]]:
    """Fixed ids from all over a vocabulary."""
    random = np.random.default_rng(0)
    return [random.integers(vocabulary, size=_PROBE_TOKENS).tolist() for _ in range(_PROBE_SEQUENCES)]


def following(model: Any, texts: Sequence[Sequence[int]]) -> Answer:
    """Log-probabilities of every id after each text, [B, V]."""
    with torch.inference_mode():
        logits_BV = model(input_ids=torch.tensor(texts), use_cache=False).logits[:, -1].float()
        answer: Answer = torch.log_softmax(logits_BV, -1).numpy()
    return answer


def _apart(answer: Answer, told: Stated) -> float:
    """Mean difference of what was told from an answer, in nats."""
    return float(np.mean([abs(answer[row, index] - each[index]) for row, each in enumerate(told) for index in each]))


def _told(client: Client, adapter: Adapter | None, ids: Sequence[int]) -> dict[int, float]:
    """Log-probabilities of the likeliest ids after a text, by the server."""
    request = {
        **({} if adapter is None else {"model": adapter.name}),
        "token_ids": list(ids),
        "sampling_params": {"temperature": 1.0, "max_tokens": 1, "logprobs": _LIKELIEST, "detokenize": False},
    }
    answer = client.post(GENERATE, request)
    with client.reading("a score that is none"):
        likeliest = answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]
        return {int(each["token_id"]): float(each["logprob"]) for each in likeliest}
