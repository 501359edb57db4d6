"""Model folders that somebody made to harm, or that were damaged: each is named before work starts."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from crl.errors import BadInput
from crl.policies import load_chat, resolve_model
from crl.policies.bounded import TookTooLong, bounded
from crl.policies.sources import ModelSource, check_model
from crl.policies.untrusted import problem_in, tried

Damage = Callable[[Path], object]
WEIGHTS, CONFIG = "model.safetensors", "config.json"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% set x = a * b %}{% endfor %}{% endfor %}"
HUGE = "{{ 'a' * 10000000000 }}"
GROWING = (
    "{% set ns = namespace(s='x') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s|length }}"
)


@pytest.fixture
def folder(tiny: ModelSource, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny.path, tmp_path / "model"))


def _header(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        change(header)
        text = json.dumps(header).encode()
        (folder / WEIGHTS).write_bytes(len(text).to_bytes(8, "little") + text + content[8 + size :])

    return damage


def _length(value: int) -> Damage:
    return lambda folder: (folder / WEIGHTS).write_bytes(
        value.to_bytes(8, "little") + (folder / WEIGHTS).read_bytes()[8:]
    )


def _first(header: dict[str, Any]) -> dict[str, Any]:
    return next(each for name, each in header.items() if name != "__metadata__")


def _text(name: str, content: str) -> Damage:
    return lambda folder: (folder / name).write_text(content)


def _set(name: str, **values: Any) -> Damage:
    return lambda folder: (folder / name).write_text(json.dumps(json.loads((folder / name).read_text()) | values))


def _pipe(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def _device(folder: Path) -> None:
    (folder / CONFIG).unlink()
    (folder / CONFIG).symlink_to("/dev/zero")


def _cut(name: str, size: int) -> Damage:
    return lambda folder: os.truncate(folder / name, size)


def _replaces(times: int) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * times}


DAMAGES: dict[str, tuple[Damage, str]] = {
    "header cut": (_cut(WEIGHTS, 100), WEIGHTS),
    "no header": (_cut(WEIGHTS, 3), WEIGHTS),
    "weights empty": (_cut(WEIGHTS, 0), WEIGHTS),
    "header longer than the file": (_length(2**40), WEIGHTS),
    "header of 2^63 bytes": (_length(2**63 + 5), WEIGHTS),
    "header of no bytes": (_length(0), WEIGHTS),
    "header is no JSON": (_length(40), WEIGHTS),
    "tensors overlap": (_header(lambda header: _first(header).update(data_offsets=[0, 8])), WEIGHTS),
    "a shape beyond the file": (_header(lambda header: _first(header).update(shape=[2**31, 2**31])), WEIGHTS),
    "a negative shape": (_header(lambda header: _first(header).update(shape=[-1])), WEIGHTS),
    "weights are a pipe": (_pipe(WEIGHTS), WEIGHTS),
    "config is a device": (_device, CONFIG),
    "config no JSON": (_text(CONFIG, "{"), CONFIG),
    "config empty": (_text(CONFIG, ""), CONFIG),
    "config a list": (_text(CONFIG, "[]"), CONFIG),
    "config null": (_text(CONFIG, "null"), CONFIG),
    "config without end": (_text(CONFIG, "[" * 100_000), CONFIG),
    "config deep": (_text(CONFIG, '{"a":' * 500 + "1" + "}" * 500), CONFIG),
    "hidden_size a text": (_set(CONFIG, hidden_size="48"), CONFIG),
    "hidden_size negative": (_set(CONFIG, hidden_size=-4), CONFIG),
    "layers true": (_set(CONFIG, num_hidden_layers=True), CONFIG),
    "vocabulary of 10^8": (_set(CONFIG, vocab_size=10**8), CONFIG),
    "layers of 10^8": (_set(CONFIG, num_hidden_layers=10**8), CONFIG),
    "layers of 10^30": (_set(CONFIG, num_hidden_layers=10**30), CONFIG),
    "heads of 10^9 numbers": (_set(CONFIG, head_dim=10**9), CONFIG),
    "a feed-forward part of 10^9": (_set(CONFIG, intermediate_size=10**9), CONFIG),
    "model_type a list": (_set(CONFIG, model_type=["llama"]), CONFIG),
    "quantization a text": (_set(CONFIG, quantization_config="int4"), CONFIG),
    "inner config a text": (_set(CONFIG, text_config="x"), CONFIG),
    "tokenizer a list": (_text("tokenizer.json", "[]"), "tokenizer.json"),
    "tokenizer without end": (_text("tokenizer.json", "[" * 10**6), "tokenizer.json"),
    "tokenizer without words": (_set("tokenizer.json", model={"type": "BPE", "vocab": {}}), "tokenizer.json"),
    "normalizer of 10^6": (_set("tokenizer.json", normalizer=_replaces(10**6)), "tokenizer.json"),
    "normalizers of 10^10": (
        _set("tokenizer.json", normalizer={"type": "Sequence", "normalizers": [_replaces(10)] * 10}), "tokenizer.json"
    ),
    "tokenizer config a list": (_text("tokenizer_config.json", "[1]"), "tokenizer_config.json"),
    "template a number": (_set("tokenizer_config.json", chat_template=3), "tokenizer_config.json"),
    "index leads out": (
        _text("model.safetensors.index.json", '{"weight_map": {"a": "../../secret.safetensors"}}'), "index.json"
    ),
    "index a list": (_text("model.safetensors.index.json", '{"weight_map": []}'), "index.json"),
    "generation config a text": (_set("generation_config.json", eos_token_id="x"), "generation_config.json"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_every_damage_is_named_with_its_file(folder: Path, kind: str) -> None:
    damage, name = DAMAGES[kind]
    assert problem_in(folder) is None
    damage(folder)
    with pytest.raises(BadInput) as raised:
        check_model(str(folder))
    assert name in raised.value.found and str(folder) in (raised.value.where or "")


NO_TOKENIZERS: dict[str, Damage] = {
    "no model": _text("tokenizer.json", '{"model": {"type": "nothing"}}'),
    "no vocabulary": _text("tokenizer.json", '{"version": "1.0", "model": {"type": "BPE"}}'),
    "unknown type": _set(CONFIG, model_type="nothing", architectures=["Nothing"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", NO_TOKENIZERS)
def test_what_transformers_cannot_open_is_named(folder: Path, kind: str) -> None:
    NO_TOKENIZERS[kind](folder)
    with pytest.raises(BadInput) as raised:
        load_chat(resolve_model(str(folder)))
    assert str(folder) in str(raised.value)


SPLITS = {
    "slow": r"(a+)+$",
    "slower": r"(\w+\s?)*$",
    "of Qwen": r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    "of one text": r"((qw)+)+crl",
}  # fmt: skip


def _split(pattern: str) -> Damage:
    first = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    then = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return _set("tokenizer.json", pre_tokenizer={"type": "Sequence", "pretokenizers": [first, then]})


@pytest.mark.parametrize("kind", SPLITS)
def test_a_tokenizer_that_tries_too_many_ways_is_named(folder: Path, kind: str) -> None:
    _split(SPLITS[kind])(folder)
    if kind.startswith("slow"):
        with pytest.raises(BadInput, match="the pattern by which it splits texts does not end"):
            check_model(str(folder))
        return
    chat = load_chat(resolve_model(str(folder)))
    text = "qw" * 40 + " crl"
    if kind == "of Qwen":
        assert chat.opening([{"role": "user", "content": text}])
    else:  # nobody could have known it before that text came
        with pytest.raises(BadInput, match="the tokenizer cannot split a text of"):
            chat.opening([{"role": "user", "content": text}])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = max(tensors)
    tensors[name].flat[-1] = value
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(BadInput, match=f"{name} in {WEIGHTS}"):
        resolve_model(str(folder))


@pytest.mark.parametrize("template", [HUGE, GROWING, pytest.param(LOOP, marks=pytest.mark.slow)])
def test_a_template_without_end_or_measure_is_refused_before_work(folder: Path, template: str) -> None:
    file = folder / "chat_template.jinja"
    file.write_text(template)
    with pytest.raises(BadInput, match="its chat template") as raised:
        check_model(str(folder))
    assert raised.value.where == str(file)


def test_templates_that_refuse_or_fail_are_no_matter_of_limits() -> None:
    for template in ("{{ raise_exception('no') }}", "{{ messages[9].content }}", "{% if %}", "{{ 1 // 0 }}", "plain"):
        assert tried(template) is None


def test_what_begins_to_loop_later_ends_here_too() -> None:
    began = time.monotonic()
    with pytest.raises(TookTooLong), bounded(0.2):
        while time.monotonic() - began < 60:
            pass
