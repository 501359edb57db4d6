"""A role's model on a vLLM server: its weights are handed over through a directory, and proven to have arrived.

After every hand-over a fixed probe (the canary) is scored by the server and by transformers. On a CPU a server that
takes tied weights in place keeps its old output head without a word, so weights are exported untied; whatever else goes
wrong shows in the probe. A server of our own is then started anew once. A dead one is started with the next session.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from crl.config import RoleConfig
from crl.config.engines import ServerConfig
from crl.config.models import check_context, pretrained
from crl.config.vocabulary import absent_ids, generation_config, load_tokenizer, rows_of_model
from crl.engine.process import own_folder
from crl.engine.vllm_server import VllmServer, paused, wrong_logprobs
from crl.errors import EngineDied, WrongWeights
from crl.policies.chat import ChatFormat
from crl.policies.language_model import end_ids, load_model, untie
from crl.policies.machine import cpu_computes_bfloat16
from crl.policies.sampling import sequence_logprobs
from crl.policies.served import GENERATE, ServedSession
from crl.policies.serving import Client
from crl.run.files import disk_error

_PROBE_SEQUENCES, _PROBE_TOKENS = 4, 24
TOLERANCE = {"float32": 1e-3, "bfloat16": 0.15}
"""Largest mean difference of the canary's log-probabilities, in nats. In float32 it is 1e-6 on a CPU, and more between
two kernels of a GPU. In bfloat16 two passes of SmolLM2 differ by 0.07. An old output head is 0.5 off or more."""
_NEARER = 4.0
"""A server that is so many times nearer to the answer of the weights before has kept them. One small update moves the
answer by less than the tolerance, and what two engines differ by does not point the way back."""


class VllmPolicy:
    """The model of a role behind a server (protocol `LoadedPolicy`); nothing is started before the first session."""

    def __init__(
        self,
        role: RoleConfig,
        model_path: Path,
        checkpoint: Path | None,
        *,
        threads: int,
        server: ServerConfig,
        weights: str,
    ) -> None:
        from transformers import AutoConfig

        tokenizer = load_tokenizer(model_path, role.model)
        config = pretrained(AutoConfig, model_path, role.model)
        rows = rows_of_model(config)
        check_context(config, role.model, role.context)
        self.chat = ChatFormat.of(role, tokenizer, role.model, rows=rows)
        self.context = role.context
        self._absent = absent_ids(tokenizer, rows)
        self._probe = _probe(rows)
        self._end_ids = end_ids(generation_config(model_path, config), tokenizer, self.chat)
        self._role, self._model_path, self._threads, self._config = role, model_path, threads, server
        self._checkpoint, self._weights = checkpoint, weights
        self._name = f"the vLLM server of {role.model}"
        self._server: VllmServer | None = None
        self._remote: Client | None = None
        with _written(server.folder or Path(tempfile.gettempdir())):
            if server.folder is not None:
                server.folder.mkdir(parents=True, exist_ok=True)
            self._folder = own_folder(server.folder)
        self._exported: tuple[str, Path, list[NDArray[np.float32]]] | None = None
        """Digest of the weights that are ready to be handed over, where they are, and the canary's answer."""
        self._before: list[NDArray[np.float32]] | None = None
        """The canary's answer by the weights that arrived last."""
        self._serving = ""
        """Digest of the weights that the server is known to have; empty where none is."""

    @property
    def server_pid(self) -> int | None:
        """Process id of the server that this policy started."""
        return None if self._server is None else self._server.pid

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ServedSession:
        """Start one row per prompt; the server is started, and given the weights, where it has to be.

        Raises PromptTooLong, EngineDied where there is no server, WrongWeights where it keeps others.
        """
        rows = (self._ready(), self._weights, self._end_ids, self.context, prompts, seeds)
        return ServedSession(*rows, self._failed, self.chat.stops, self._absent)

    def hand_over(self, checkpoint: Path | None, weights: str) -> None:
        """From now on other weights, of a checkpoint or (None) of the base model; they go to the server when it is
        next sampled from."""
        self._checkpoint, self._weights = checkpoint, weights

    def take_weights(self, directory: Path) -> bool:
        """Weights come with their digest: see :meth:`hand_over`."""
        return False

    def close(self) -> None:
        """End the server, unless it was running before, and remove what was exported."""
        self._serving, self._exported, self._before = "", None, None
        if self._remote is not None:
            self._remote.close()
            self._remote = None
        if self._server is not None:
            self._server.stop()
            self._server = None
        shutil.rmtree(self._folder, ignore_errors=True)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _ready(self) -> Client:
        """The connection to a server that has the weights."""
        if self._config.address is not None:
            if self._remote is None:
                self._remote = Client(self._name, self._config, self._config.address)
            client = self._remote
            if self._serving != self._weights:
                if paused(client):
                    # Whoever paused it was killed before it could go on: a request would wait for ever. Where another
                    # shard loads the same weights right now, that goes on: requests wait while it does.
                    client.post("/resume", None)
                # Asked again with all weights: the server may have been started anew, and the canary does not see it.
                wrong = wrong_logprobs(client, "runtime.servers.<role>.address")
                if wrong is not None:
                    raise wrong
                directory = self._export()
                self._reload(client, directory)
                self._require(client, "it was asked to load them")
            return client
        if self._server is None:
            self._server = VllmServer(self._name, self._config, self._role, self._threads)
        if self._server.client is None or not self._server.running:
            return self._start(self._server)
        if self._serving == self._weights:
            return self._server.client
        directory = self._export()
        try:
            self._reload(self._server.client, directory)
            self._require(self._server.client, "it was asked to load them")
        except (WrongWeights, EngineDied):
            return self._start(self._server)
        return self._server.client

    def _start(self, server: VllmServer) -> Client:
        """A new server process on the weights."""
        self._serving = ""
        client = server.start(self._export())
        try:
            self._label(client)
            self._require(client, "it was started with them")
        except EngineDied as error:
            raise self._failed(error) from None
        except WrongWeights:
            server.kill()
            raise
        return client

    def _reload(self, client: Client, directory: Path) -> None:
        """Have a running server take the weights in place; nothing that it read before is used again."""
        self._serving = ""
        limit = {"timeout": self._config.start_seconds}
        try:
            client.post("/pause?mode=wait", None, **limit)
            request = {"method": "reload_weights", "kwargs": {"weights_path": str(directory)}}
            client.post("/collective_rpc", request, **limit)
            client.post("/reset_prefix_cache", None, **limit)
            self._label(client)
        finally:
            client.post("/resume", None, **limit)

    def _label(self, client: Client) -> None:
        client.post("/update_weight_version", {"new_version": self._weights})

    def _require(self, client: Client, told: str) -> None:
        """The canary: raise WrongWeights where the server scores the probe as other weights would."""
        assert self._exported is not None
        expected = self._exported[2]
        found = client.all(lambda ids: _scored(client, ids), self._probe)
        gap = _apart(expected, found)
        kept = self._before is not None and _apart(self._before, found) * _NEARER < gap
        if kept or not gap <= TOLERANCE[self._role.dtype]:  # also where it is no number
            raise WrongWeights(
                f"{self._name} has other weights than those of {self._weights[:12]}, although {told}: its "
                f"log-probabilities of a fixed probe are {gap:.2g} nats off on average"
                + (", and those of the weights before" if kept else ""),
                expected=f"the new weights' own, but for at most {TOLERANCE[self._role.dtype]} between vLLM and "
                f"transformers in {self._role.dtype}",
                where=self._config.address or "a server that was started here, and started again",
                next_step="nothing was sampled; use the engine transformers for this model, or another version of vLLM",
            )
        self._serving, self._before = self._weights, expected

    def _export(self) -> Path:
        """The directory with the weights as a server takes them; the canary's answer is computed beside it."""
        before = self._exported
        directory = self._folder / self._weights[:16]
        # Who shares the folder may have taken it for left behind, in a round that lasted for days.
        if before is not None and before[0] == self._weights and directory.is_dir():
            os.utime(self._folder)
            return directory
        model = load_model(self._model_path, self._checkpoint, dtype=getattr(torch, self._role.dtype)).eval()
        with _written(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            save_untied(model, directory)
        if not cpu_computes_bfloat16():  # this copy stays on the CPU: the same weights in a hundredth of the time
            model = model.float()
        expected = sequence_logprobs(model, self._probe, 1.0, batch=_PROBE_SEQUENCES)
        self._exported = (self._weights, directory, expected)
        if before is not None and before[1] != directory:
            shutil.rmtree(before[1], ignore_errors=True)
        return directory

    def _failed(self, error: EngineDied) -> EngineDied:
        """An answer did not come, or cannot be: the server is ended, and the next session starts another one."""
        self._serving = ""
        if self._server is None:
            return error
        died = self._server.died(f"{error.found.partition(self._name)[2].strip()}; it")
        return EngineDied(died.found, expected=error.expected, where=died.where, next_step=died.next_step)


@contextmanager
def _written(folder: Path) -> Iterator[None]:
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
            next_step="make room or give access there, or name another folder: runtime.servers.<role>.folder; then "
            "`crl resume`",
        ) from error


def save_untied(model: Any, directory: Path) -> None:
    """Write a model whose output head is a tensor of its own: a server on a CPU keeps a tied one when it reloads."""
    untie(model)
    model.save_pretrained(directory)


def _probe(vocabulary: int) -> list[list[int]]:
    """Fixed ids from all over a vocabulary."""
    random = np.random.default_rng(0)
    return [random.integers(vocabulary, size=_PROBE_TOKENS).tolist() for _ in range(_PROBE_SEQUENCES)]


def _apart(one: Sequence[NDArray[np.float32]], other: Sequence[NDArray[np.float32]]) -> float:
    """Mean difference of two answers, in nats."""
    return float(np.concatenate([np.abs(a[1:] - b[1:]) for a, b in zip(one, other, strict=True)]).mean())


def _scored(client: Client, ids: Sequence[int]) -> NDArray[np.float32]:
    """Log-probability of every id given those before it, by the server; the first has none and is 0."""
    request = {
        "token_ids": list(ids),
        "sampling_params": {"temperature": 1.0, "max_tokens": 1, "prompt_logprobs": 0, "detokenize": False},
    }
    answer = client.post(GENERATE, request)
    with client.reading("a score that is none"):
        told = answer["prompt_logprobs"]
        found = [0.0, *(float(each[str(index)]["logprob"]) for index, each in zip(ids[1:], told[1:], strict=True))]
    return np.array(found, dtype=np.float32)
