"""What is read from a model's folder: numbers and settings, no code.

Left to itself, transformers asks on a terminal whether it may run the Python files of a model. Here it may not; weights
that are pickles are not read, and kernels that a config names are not fetched.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from crl.errors import BadInput


def pretrained(kind: Any, path: Path, name: str | None = None, **options: Any) -> Any:
    """`kind.from_pretrained(path)` of one of transformers' classes that begin with Auto.

    Args:
        kind: the class.
        path: the folder.
        name: what people call the model; default its path.
        options: as the class takes them.

    Raises BadInput where the model needs code of its own, which is seen when its config is read: before work starts.
    """
    transformers = sys.modules["transformers"]
    if kind is transformers.AutoModelForCausalLM:
        options = {"use_safetensors": True, "config": None, **options}
        options["config"] = options["config"] or pretrained(transformers.AutoConfig, path, name)
    try:
        found = kind.from_pretrained(path, trust_remote_code=False, local_files_only=True, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise _own_code(path, name, "transformers has no such class") from error
    if kind is transformers.AutoConfig:
        own = "AutoModelForCausalLM" in (getattr(found, "auto_map", None) or {})
        if own and type(found) not in transformers.AutoModelForCausalLM._model_mapping:
            raise _own_code(path, name, f"transformers has no language model of type {found.model_type}")
        kernels = str(getattr(found, "_attn_implementation_internal", None) or "")
        if "/" in kernels:
            raise _own_code(path, name, f"its attention is {kernels}, from a hub")
    return found


def _own_code(path: Path, name: str | None, why: str) -> BadInput:
    files = ", ".join(sorted(each.name for each in path.glob("*.py"))) or "no file of it is here"
    return BadInput(
        f"the model {name or path} needs code that comes with it ({files}): {why}",
        expected="a model that the installed transformers has: code from a model's folder is never run",
        where=str(path),
        next_step="choose another model, or the same one in the format of transformers, without `auto_map`",
    )
