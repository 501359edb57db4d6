"""What is read from a model's folder: numbers and settings, no code.

Every call of transformers that reads a folder is made here. Left to itself, transformers asks on a terminal whether it
may run the Python files of a model; and weights that are pickles are not read, nor kernels that a config names.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from crl.errors import BadInput

T = TypeVar("T")

_CLOSED = {"trust_remote_code": False, "local_files_only": True}


def read_config(path: Path, name: str | None = None) -> Any:
    """A model's config. Raises BadInput where the model (people call it `name`) comes with code of its own."""
    from transformers import AutoConfig

    config: Any = _read(lambda: AutoConfig.from_pretrained(path, **_CLOSED), path, name)
    _require_known(config, path, name)
    return config


def read_tokenizer(path: Path, name: str | None = None, **options: Any) -> Any:
    """Its tokenizer; `options` as transformers takes them. Raises BadInput where that is code of the model's own."""
    from transformers import AutoTokenizer

    return _read(lambda: AutoTokenizer.from_pretrained(path, **_CLOSED, **options), path, name)


def read_model(path: Path, **options: Any) -> Any:
    """Its weights as a causal language model; `options` as transformers takes them. Raises as the others do."""
    from transformers import AutoModelForCausalLM

    load = AutoModelForCausalLM.from_pretrained
    options.setdefault("config", read_config(path))
    return _read(lambda: load(path, **_CLOSED, use_safetensors=True, **options), path, None)


def _read(load: Callable[[], T], path: Path, name: str | None) -> T:
    try:
        return load()
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise _own_code(path, name, "its class is not one of transformers") from error
        raise


def _require_known(config: Any, path: Path, name: str | None) -> None:
    """Refuse a config of transformers whose model is not, and kernels that would be fetched from a hub."""
    from transformers import AutoModelForCausalLM

    mapping: Any = AutoModelForCausalLM._model_mapping
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}) and type(config) not in mapping:
        raise _own_code(path, name, f"transformers has no language model of type {config.model_type}")
    kernels = str(getattr(config, "_attn_implementation_internal", None) or "")
    if "/" in kernels:
        raise _own_code(path, name, f"it names {kernels} for its attention")


def _own_code(path: Path, name: str | None, why: str) -> BadInput:
    files = ", ".join(sorted(each.name for each in path.glob("*.py"))) or "no file of it is here"
    return BadInput(
        f"the model {name or path} needs code that comes with it ({files}): {why}",
        expected="a model that the installed transformers has: code from a model's folder is never run",
        where=str(path),
        next_step="choose another model, or the same one in the format of transformers, without `auto_map`",
    )
