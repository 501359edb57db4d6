"""Nothing in a model's folder runs code, and nobody is asked whether it may."""

from __future__ import annotations

import ast
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crl.config import RoleConfig
from crl.errors import BadInput
from crl.learn.scoring import load_trainable
from crl.policies import load_chat
from crl.policies.language_model import load_policy
from crl.policies.sources import resolve_model

ROOT = Path(__file__).parents[3]
CODE = """
import pathlib
pathlib.Path({marker!r}).touch()
from transformers import LlamaConfig as EvilConfig, LlamaForCausalLM as EvilModel, PreTrainedTokenizerFast as Evil
"""


class Pickled:
    """Touches a file where it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def own_type(model: Path, marker: Path) -> None:
    change(model / "config.json", model_type="evil", auto_map={"AutoConfig": "evil.EvilConfig"})


def elsewhere(model: Path, marker: Path) -> None:
    change(model / "config.json", model_type="evil", auto_map={"AutoConfig": "owner/repo--evil.EvilConfig"})


def own_model(model: Path, marker: Path) -> None:
    """A config that transformers has, of a model that it does not have as a language model."""
    change(model / "config.json", model_type="vit", auto_map={"AutoModelForCausalLM": "evil.EvilModel"})


def own_kernels(model: Path, marker: Path) -> None:
    change(model / "config.json", attn_implementation="owner/kernels")


def a_pickle(model: Path, marker: Path) -> None:
    weights = model / "model.safetensors"
    weights.rename(model / "other.safetensors")
    (model / "pytorch_model.bin").write_bytes(pickle.dumps(Pickled(marker)))


def harmless(model: Path, marker: Path) -> None:
    """transformers has all of it: the code beside it is left alone."""
    change(
        model / "config.json",
        auto_map={"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"},
    )
    change(model / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "evil.Evil"]})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model with a Python file beside it; whoever asks is told yes."""
    made = tmp_path / "model"
    shutil.copytree(resolve_model("tiny").path, made)
    (made / "evil.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.setattr("builtins.input", lambda *words: (tmp_path / "asked").touch() or "y")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    return made


def loads(model: Path) -> list[Callable[[], Any]]:
    """Everything that reads a model: before work (doctor, train), to sample, to train."""
    role = RoleConfig(model=str(model), context=64)

    def before_work() -> None:
        load_chat(resolve_model(str(model)), role, role="actor")

    return [
        before_work,
        lambda: load_policy(role, model, None, threads=1),
        lambda: load_trainable(model, None, lora=None, source="x", seed=0, gradient_checkpointing=False),
    ]


@pytest.mark.parametrize("twist", [own_type, elsewhere, own_model, own_kernels])
def test_code_of_a_model_is_refused_in_words(folder: Path, tmp_path: Path, twist: Callable[[Path, Path], None]) -> None:
    twist(folder, tmp_path / "ran")
    for load in loads(folder):
        with pytest.raises(BadInput, match="needs code that comes with it") as refused:
            load()
        assert str(folder) in str(refused.value)
        assert "trust_remote_code" not in str(refused.value), "no way out that runs it"
    assert not (tmp_path / "ran").exists() and not (tmp_path / "asked").exists()


def test_a_pickle_is_not_read(folder: Path, tmp_path: Path) -> None:
    a_pickle(folder, tmp_path / "ran")
    for load in loads(folder)[1:]:
        with pytest.raises((BadInput, OSError), match=r"model\.safetensors"):
            load()
    assert not (tmp_path / "ran").exists()


def test_a_model_that_transformers_has_is_read_without_its_code(folder: Path, tmp_path: Path) -> None:
    harmless(folder, tmp_path / "ran")
    for load in loads(folder):
        load()
    assert not (tmp_path / "ran").exists() and not (tmp_path / "asked").exists()


def test_every_call_says_that_no_code_is_run() -> None:
    """Also those of tomorrow: what reads a folder is in one module, or says so itself."""
    safe = {"GenerationConfig", "PeftModel"}
    missing = []
    for path in sorted(
        each for room in ("crl", "flows", "tasks", "benchmarks") for each in (ROOT / room).rglob("*.py")
    ):
        content = path.read_text(encoding="utf-8")
        if not any(name in content for name in ("from_pretrained", "SentenceTransformer")):
            continue  # writing every call of every file out takes ten seconds
        for call in ast.walk(ast.parse(content)):
            if not isinstance(call, ast.Call):
                continue
            said = ast.unparse(call.func)
            reads = said.endswith(".from_pretrained") or said == "SentenceTransformer"
            words = {each.arg: ast.unparse(each.value) for each in call.keywords}
            if reads and said.split(".")[-2:][0] not in safe and words.get("trust_remote_code") != "False":
                missing.append(f"{path.relative_to(ROOT)}:{call.lineno}: {said}")
    assert missing == []
