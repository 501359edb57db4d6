"""Every text architecture of the installed transformers: right from sampling to resuming, or refused by name."""

from __future__ import annotations

import csv
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

import pytest

from crl.policies import resolve_model
from tests.architectures import kinds, write_seeing
from tests.learning.matrix import COLUMNS, LORA, MOST_NATS, sampled, tried, updated

TABLE = Path(__file__).parents[2] / "docs" / "results" / "models.csv"
"""What was found, with the versions of transformers and peft; made by this test with CRL_WRITE_MODELS=1."""
ENCODERS = (
    "bert", "bert-generation", "big_bird", "camembert", "data2vec-text", "electra", "ernie", "megatron-bert", "rembert",
    "roberta", "roberta-prelayernorm", "roc_bert", "roformer", "xlm", "xlm-roberta", "xlm-roberta-xl", "xmod",
)  # fmt: skip
ENCODER_DECODERS = (
    "bart", "bigbird_pegasus", "blenderbot", "blenderbot-small", "marian", "mbart", "mvp", "pegasus", "plbart",
    "prophetnet", "trocr", "whisper", "musicgen", "musicgen_melody",
)  # fmt: skip
OTHER_MEDIA = (
    "dots3_note", "emu3", "fuyu", "gemma3", "gemma3n", "gemma4", "gemma4_unified", "git", "got_ocr2", "llama4",
    "mllama", "moshi", "moss_transcribe_diarize", "phi4_multimodal", "qwen3_5", "qwen3_5_moe", "qwen4_exp",
)  # fmt: skip
"""Of images, speech, and music; those that hold a text model are tried as that model."""
LEFT_OUT = {
    "blt": "reads bytes in patches, with a hash table of three million rows",
    "gemma4_assistant": "drafts for another model, of which it reads the cache",
    "gemma4_unified_assistant": "drafts for another model, of which it reads the cache",
    "reformer": "its attention hashes positions of one fixed length",
}
FEW = ("gpt_oss",)
"""Tried in the fast tests, too: windows and sinks."""
_lines: dict[str, Mapping[str, str]] = {}


def of_text() -> list[str]:
    """Decoder-only architectures of text, but for those that are left out."""
    return sorted(set(kinds()) - {*ENCODERS, *ENCODER_DECODERS, *OTHER_MEDIA, *LEFT_OUT})


@pytest.mark.parametrize(
    "kind", [pytest.param(each, marks=() if each in FEW else pytest.mark.slow) for each in of_text()]
)
def test_an_architecture(kind: str, tmp_path: Path) -> None:
    _lines[kind] = tried(kind, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["gemma3", "qwen3_5", "llama4"])
def test_a_model_that_also_sees_is_used_as_its_text_model(kind: str, tmp_path: Path) -> None:
    write_seeing(kind, tmp_path / "base", resolve_model("tiny").path, 512)
    _, rows, apart = sampled(tmp_path / "base")
    assert apart < MOST_NATS
    assert updated(tmp_path / "base", tmp_path / "full", rows, None)
    if kind != "llama4":  # peft cannot wrap its router
        assert updated(tmp_path / "base", tmp_path / "lora", rows, LORA)


@pytest.mark.slow
def test_enough_are_right() -> None:
    """Behind the others, in one process with them."""
    if len(_lines) < len(of_text()):
        pytest.skip("not all architectures were tried in this process, or one is wrong")
    lines = list(_lines.values())
    if os.environ.get("CRL_WRITE_MODELS"):
        write(lines)
    of_peft = [each for each in lines if "PEFT" not in each["note"]]
    assert share(lines, "sampling") >= 0.95 and share(lines, "full weights") >= 0.9 and share(of_peft, "lora") >= 0.8
    assert share(of_peft, "lora in bfloat16") >= 0.8
    assert all(each["note"] for each in lines if "refused" in each.values()), "each refusal has its reason"


def test_the_table_names_all_that_are_there() -> None:
    """Of the versions it was made with; others are tried by hand."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        made_with, *lines = csv.reader(file)
    if made_with != versions():
        pytest.skip(f"made with {made_with}")
    names = lines.pop(0)
    tried = [line[0] for line in lines if line[2] != "left out"]
    assert names == list(COLUMNS) and tried == of_text() and lines[len(tried) :] == left_out() and len(LEFT_OUT) <= 15


def share(lines: list[Mapping[str, str]], column: str) -> float:
    """Of lines, how many are not refused."""
    return sum(each[column] not in ("", "refused") for each in lines) / len(lines)


def versions() -> list[str]:
    """What the results follow from."""
    return [f"{name} {version(name)}" for name in ("transformers", "peft")]


def write(lines: list[Mapping[str, str]]) -> None:
    """The table, in the order of the names."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerows([versions(), COLUMNS, *([each[name] for name in COLUMNS] for each in lines), *left_out()])


def left_out() -> list[list[str]]:
    """Lines of what is not tried."""
    return [[kind, "", "left out", "", "", "", "", why] for kind, why in sorted(LEFT_OUT.items())]
