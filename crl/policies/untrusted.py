"""A model's folder is somebody else's: what is looked at before any of it is used.

Every file is a plain one of a bounded size; JSON is no deeper than `crl.limits` says, and what others count with is of
its type; headers of weights are read by safetensors, which checks lengths and overlaps; a config describes no larger a
model than the weights hold; every number is one; a chat template is tried in a process with limits
(`crl.policies.template_trial`), and so are the patterns of a tokenizer (`crl.policies.tokenizer_trial`). What fits all
that and is still no model of transformers is said where it is read (`crl.config.models.pretrained`).

This module imports neither torch nor transformers.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from crl.errors import BadInput
from crl.limits import MEGABYTE, MODEL_JSON_BYTES, WEIGHTS_HEADER_BYTES, parse_json, read_limited
from crl.policies.tokenizer_trial import GIVES_UP, patterns

READ = (".safetensors", ".json", ".jinja", ".txt", ".model")
"""Suffixes of files that are part of a model."""
_TEXT_BYTES = 200 * MEGABYTE
_LARGEST = 10**9
_COUNTS = ("vocab_size", "hidden_size", "n_embd", "num_hidden_layers", "n_layer", "num_attention_heads", "n_head")
_MORE_COUNTS = (
    "num_key_value_heads", "intermediate_size", "head_dim", "max_position_embeddings", "num_experts",
    "num_local_experts", "num_experts_per_tok",
)  # fmt: skip
"""Of a config: whole numbers that programs make memory of, from 1; and from 0, of some models a list for each layer."""
_TYPES: dict[str, dict[str, type | tuple[type, ...]]] = {
    "config.json": {
        "model_type": str, "architectures": list, "text_config": dict, "quantization_config": dict, "auto_map": dict,
        "tie_word_embeddings": bool, "dtype": (str, dict), "torch_dtype": (str, dict),
        **dict.fromkeys(_COUNTS, int), **dict.fromkeys(_MORE_COUNTS, (int, float, list)),
    },
    "tokenizer_config.json": {
        "chat_template": (str, list), "added_tokens_decoder": dict, "tokenizer_class": str,
        "model_max_length": (int, float), "extra_special_tokens": (dict, list),
    },
    "tokenizer.json": {"model": dict, "added_tokens": list},
    "generation_config.json": {"eos_token_id": (int, list), "temperature": (int, float), "max_new_tokens": int},
    "adapter_config.json": {"base_model_name_or_path": str, "revision": str, "peft_type": str, "r": int},
    "model.safetensors.index.json": {"weight_map": dict, "metadata": dict},
}  # fmt: skip
"""By file: what is read of it, where it is there and not null."""
_EXPONENT = {
    "F8_E5M2": ("<u1", 0x7C), "F16": ("<u2", 0x7C00), "BF16": ("<u2", 0x7F80), "F32": ("<u4", 0x7F800000),
    "F64": ("<u8", 0x7FF0000000000000),
}  # fmt: skip
"""By type of number: as whole numbers, and the bits that are all set in an infinity and in what is no number."""
_BLOCK = 16 * MEGABYTE
_MOST_GROWTH = 1_000
"""Times that a tokenizer may make a text longer before it splits it; those of models replace a character by two."""
TRIAL_SECONDS = 10
TRIAL_BYTES = 1_000 * MEGABYTE
"""Processor time and memory that the trial of a template or of a pattern may take."""
_PATIENCE_SECONDS = 120


def problem_in(path: Path) -> tuple[Path, str] | None:
    """The first file of a model's folder that cannot be used, and why; None: all can, as far as they were read."""
    for file in sorted(path.iterdir()):
        if file.suffix not in READ:
            continue
        try:
            known = file.stat()
        except OSError as error:
            return file, str(error.strerror)
        if (found := _damage(file, known.st_size, known.st_mtime_ns)) is not None:
            return file, found
    if (found := _too_large(path)) is not None:
        return path / "config.json", found
    for file, template in _templates(path):
        if (found := tried(template)) is not None:
            return file, found
    if (file := path / "tokenizer.json").is_file() and (found := _tried_patterns(file, file.stat().st_mtime_ns)):
        return file, found
    return None


@lru_cache(maxsize=1024)
def _damage(file: Path, size: int, changed: int) -> str | None:
    """Why a file cannot be read; None: it can. Of weights only the header is. A file of the same size and time is not
    read again: a model is resolved many times, and some tokenizers have 30 MB."""
    from safetensors import SafetensorError, safe_open

    try:
        if file.suffix == ".safetensors":
            header = _header_size(file, size)
            if not 0 < header <= min(size - 8, WEIGHTS_HEADER_BYTES):
                return f"its header has {header:,} bytes, and the file {size:,}"
            with safe_open(file, "numpy"):
                return None
        if file.suffix != ".json":
            read_limited(file, _TEXT_BYTES)
            return None
        return _wrong_type(file.name, parse_json(read_limited(file, MODEL_JSON_BYTES).decode("utf-8")))
    except (OSError, ValueError, RecursionError, SafetensorError) as error:
        return str(getattr(error, "strerror", None) or error)


def _wrong_type(name: str, found: Any) -> str | None:
    """What in a file has another type than its readers take it for, in words."""
    expected = _TYPES.get(name)
    if expected is None:
        return None
    if not isinstance(found, dict):
        return f"it holds {_in_words(found)}, not an object"
    for key, kind in expected.items():
        value = found.get(key)
        if value is None:
            continue
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            return f"{key} is {_in_words(value)}"
        if isinstance(value, int) and key in (*_COUNTS, *_MORE_COUNTS):
            least = 1 if key in _COUNTS else 0
            if not least <= value <= _LARGEST:
                return f"{key} is {value}"
    if name == "config.json" and isinstance(inner := found.get("text_config"), dict):
        return _wrong_type(name, {key: value for key, value in inner.items() if key != "text_config"})
    if name == "tokenizer.json":
        if (found.get("model") or {}).get("vocab") in ({}, []):
            return "its vocabulary is empty"
        if (times := _growth(found.get("normalizer"))) > _MOST_GROWTH:
            return f"its normalizer makes {times:,} characters of one"
    if name == "model.safetensors.index.json":
        shards = (found.get("weight_map") or {}).values()
        bad = next((each for each in shards if not isinstance(each, str) or Path(each).name != each), None)
        return None if bad is None else f"it names {bad!r}, which is no file of the folder"
    return None


def _growth(normalizer: Any) -> int:
    """How many characters the replacements of a tokenizer may make of one: all are made of every text, in memory."""
    if not isinstance(normalizer, dict):
        return 1
    inner = normalizer.get("normalizers")
    steps = [_growth(each) for each in inner] if isinstance(inner, list) else []
    return math.prod(steps) * max(1, len(str(normalizer.get("content") or normalizer.get("prepend") or "")))


def _in_words(value: Any) -> str:
    kinds = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}
    return kinds.get(type(value), f"the number {value}"[:60])


def _too_large(path: Path) -> str | None:
    """What a config says that the weights beside it cannot hold; a program would make room for all of it."""
    files = sorted(path.glob("*.safetensors"))
    index = path / "model.safetensors.index.json"
    if not files or not (path / "config.json").is_file() or index.is_file():
        return None
    config = parse_json(read_limited(path / "config.json", MODEL_JSON_BYTES))
    config |= config.get("text_config") or {}
    held = sum(math.prod(each["shape"]) for file in files for each in _tensors(file).values())
    hidden = config.get("hidden_size") or config.get("n_embd") or 1
    layers = config.get("num_hidden_layers") or config.get("n_layer") or 1
    heads = config.get("num_attention_heads") or config.get("n_head") or 1
    for key, times in (
        ("vocab_size", config.get("vocab_size")),
        ("num_hidden_layers", layers),
        ("head_dim", config.get("head_dim")),
        ("intermediate_size", config.get("intermediate_size")),
    ):
        least = hidden * times * (heads if key == "head_dim" else 1) if isinstance(times, int | float) else 0
        if least > 4 * held:
            return f"{key} and hidden_size describe {least:,} numbers, and the weights have {held:,}"
    return None


def _header_size(file: Path, size: int) -> int:
    if size < 8:
        return -1
    with os.fdopen(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
        return int.from_bytes(opened.read(8), "little")


def _tensors(file: Path) -> Mapping[str, Any]:
    """Type, shape and place of each tensor, of a file whose header was checked."""
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    header.pop("__metadata__", None)
    return dict(header)


def check_numbers(file: Path, name: str) -> None:
    """Raise BadInput where a file of weights holds an infinity, or what is no number (NaN)."""
    tensors = _tensors(file)
    with file.open("rb") as opened:
        begin = 8 + int.from_bytes(opened.read(8), "little")
        for tensor, told in tensors.items():
            kind, bits = _EXPONENT.get(told["dtype"], ("", 0))
            at, end = told["data_offsets"]
            while kind and at < end:
                opened.seek(begin + at)
                block = np.frombuffer(opened.read(min(_BLOCK, end - at)), kind)
                if ((block & np.array(bits, kind)) == bits).any():
                    raise BadInput(
                        f"{name!r} cannot be used as a model: {tensor} in {file.name} holds numbers that are none (NaN "
                        "or infinite).",
                        expected="finite weights: training that diverged leaves such ones",
                        where=str(file),
                        next_step="Use an earlier checkpoint of the model, or download it once more.",
                    )
                at += _BLOCK


def _templates(path: Path) -> Iterator[tuple[Path, str]]:
    """The chat templates of a folder, with the file that each is in."""
    for file in (path / "chat_template.jinja", *sorted(path.glob("additional_chat_templates/*.jinja"))):
        if file.is_file():
            yield file, read_limited(file, _TEXT_BYTES).decode("utf-8", "replace")
    config = path / "tokenizer_config.json"
    found = parse_json(read_limited(config, MODEL_JSON_BYTES)).get("chat_template") if config.is_file() else None
    listed: Iterable[Any] = found if isinstance(found, list) else [{"template": found}]
    for each in listed:
        if isinstance(each, dict) and isinstance(each.get("template"), str):
            yield config, each["template"]


@lru_cache(maxsize=256)
def _tried_patterns(file: Path, changed: int) -> str | None:
    """Why the patterns by which a tokenizer splits texts cannot be used; None: it has none, or they end."""
    content = parse_json(read_limited(file, MODEL_JSON_BYTES))
    content = {key: content.get(key) for key in ("normalizer", "pre_tokenizer")}
    if next(patterns(content), None) is None:
        return None
    return _ended("tokenizer_trial.py", json.dumps(content), "the pattern by which it splits texts")


@lru_cache(maxsize=256)
def tried(template: str) -> str | None:
    """Why a chat template cannot be used: it does not end, or takes more memory than there should be. It renders some
    conversations in a process of its own, once for each text; what else is wrong with it is said where it is used."""
    return _ended("template_trial.py", template, "its chat template")


def _ended(program: str, content: str, what: str) -> str | None:
    """Why what a process with limits tried did not end; None: it did."""
    # By its path: a package's name would import all of the package first.
    command = [sys.executable, "-P", str(Path(__file__).with_name(program)), str(TRIAL_SECONDS), str(TRIAL_BYTES)]
    try:
        done = subprocess.run(
            command,
            input=content.encode("utf-8", "replace"),
            capture_output=True,
            timeout=_PATIENCE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{what} does not end (it was stopped after {_PATIENCE_SECONDS} s)"
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"{what} does not end (it was stopped after {TRIAL_SECONDS} s of processor time)"
    if done.returncode == GIVES_UP:
        return f"{what} does not end (the library gave it up)"
    if done.returncode:
        return f"{what} takes more than {TRIAL_BYTES // MEGABYTE:,} MB of memory"
    return None
