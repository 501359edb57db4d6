"""A role's model on a vLLM server (protocol `LoadedPolicy`). How the server gets its weights is in `vllm_weights`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from crl.config import RoleConfig
from crl.config.engines import ServerConfig
from crl.config.models import check_context, pretrained
from crl.config.vocabulary import absent_ids, generation_config, load_tokenizer, rows_of_model
from crl.engine.vllm_weights import ServedWeights, VllmServers
from crl.policies.chat import ChatFormat
from crl.policies.language_model import end_ids
from crl.policies.served import ServedSession


class VllmPolicy:
    """The model of a role behind a server; nothing is started before the first session."""

    def __init__(
        self,
        role: RoleConfig,
        model_path: Path,
        checkpoint: Path | None,
        *,
        threads: int,
        server: ServerConfig,
        weights: str,
        served: ServedWeights | None = None,
    ) -> None:
        """`served`: the weights that other roles have as well; None: of this policy alone, with a server of its own."""
        from transformers import AutoConfig

        tokenizer = load_tokenizer(model_path, role.model)
        config = pretrained(AutoConfig, model_path, role.model)
        rows = rows_of_model(config)
        check_context(config, role.model, role.context)
        self.chat = ChatFormat.of(role, tokenizer, role.model, rows=rows)
        self.context = role.context
        self._absent = absent_ids(tokenizer, rows)
        self._end_ids = end_ids(generation_config(model_path, config), tokenizer, self.chat)
        self._own = VllmServers()
        self._served = served or self._own.weights("policy", {"policy": role}, model_path, server, threads)
        self.hand_over(checkpoint, weights)

    @property
    def server_pid(self) -> int | None:
        """Process id of the server that was started here."""
        return self._served.server_pid

    def open(self, prompts: Sequence[Sequence[int]], seeds: Sequence[int], limit: int | None = None) -> ServedSession:
        """Start one row per prompt; the server is started, and given the weights, where it has to be.

        Raises PromptTooLong, EngineDied where there is no server, WrongWeights where it keeps others.
        """
        # Another role of these weights may have handed over those of another round since.
        self._served.hand_over(self._checkpoint, self._weights)
        client, adapter = self._served.ready()
        rows = (client, self._weights, self._end_ids, self.context, prompts, seeds)
        return ServedSession(*rows, self._served.failed, self.chat.stops, self._absent, adapter)

    def hand_over(self, checkpoint: Path | None, weights: str) -> None:
        """From now on other weights, of a checkpoint or (None) of the base model; they go to the server when it is
        next sampled from."""
        self._checkpoint, self._weights = checkpoint, weights

    def take_weights(self, directory: Path) -> bool:
        """Weights come with their digest: see :meth:`hand_over`."""
        return False

    def close(self) -> None:
        """End the server, if no other role has it and it was started here."""
        self._own.close()
