"""Language models: find and prepare them, chat, sample with a kept key-value cache, score; text embedders.

torch and transformers are imported inside functions or in modules that only the engine imports, so that naming a
model (`sources`) stays light.

Suffixes of tensors and arrays name their shapes, `logits_BV`: B rows that are sampled, T tokens of a pass or of a
sequence, V vocabulary; R rows of the cache, A of them that attend together, S with one new token; P pieces (of a word:
parts), N new tokens of one, C slots of a row; Q query heads, H key-value heads, G query heads that share one, X = G N;
D width of a key, an embedding or a layer, E of a value; K answers to choose among; digits are lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from crl.config.models import Sampling, check_context
from crl.config.roles import ENDPOINT
from crl.policies.sources import ModelSource, check_model, name_accelerator, resolve_model

if TYPE_CHECKING:
    from crl.config import RoleConfig
    from crl.config.engines import ServerConfig
    from crl.protocols import Chat, LoadedPolicy

__all__ = ["ModelSource", "check_computable", "check_model", "load_chat", "load_policy", "resolve_model"]


def load_policy(
    role: RoleConfig,
    model_path: Path,
    checkpoint: Path | None,
    *,
    threads: int,
    server: ServerConfig | None = None,
    weights: str = "",
    way: Sampling | None = None,
    base: Callable[[Any], Any] | None = None,
    served: Any = None,
) -> LoadedPolicy:
    """The model of a role, ready to sample on the engine that the role names: see `crl.config.EngineConfig.load`.

    `server` (None: the defaults) and `weights`, the digest of the weights, are for engines that sample by a server;
    `way` (None: tried when it is loaded) and `base`, which makes a base model that several roles stand on, for the one
    that samples here; `served` for vLLM, the weights that several roles have (`crl.engine.vllm_weights`).
    """
    more: dict[str, Any] = {"server": server, "weights": weights} if role.engine.SERVED else {}
    more |= {"way": way, "base": base} if role.engine.kind == "transformers" else {}
    more |= {"served": served} if role.engine.kind == "vllm" else {}
    policy: LoadedPolicy = role.engine.load(role, model_path, checkpoint, threads=threads, **more)
    return policy


def load_chat(source: ModelSource, config: RoleConfig | None = None, *, role: str | None = None) -> Chat:
    """A model's chat format, without its weights.

    With the `config` of a role (its name is for messages): with its chat template, and BadInput where the model has no
    positions for its context.
    """
    if source.name.startswith(ENDPOINT):
        from crl.policies.endpoint import EndpointChat

        return EndpointChat()
    name_accelerator()
    from transformers import AutoConfig

    from crl.config.models import pretrained
    from crl.config.vocabulary import load_tokenizer, rows_of_model
    from crl.policies.chat import ChatFormat

    of_model = pretrained(AutoConfig, source.path, source.name)
    if config is not None:
        check_context(of_model, source.name, config.context, role)
    tokenizer = load_tokenizer(source.path, source.name)
    return ChatFormat.of(config, tokenizer, source.name, rows=rows_of_model(of_model))


def check_computable(source: ModelSource) -> None:
    """Raise BadInput where a model's config says that it is none which this project computes. No weights are read."""
    name_accelerator()
    from transformers import AutoConfig

    from crl.config.models import check_language_model, pretrained

    check_language_model(pretrained(AutoConfig, source.path, source.name), source.path, source.name)
