"""Chat templates of many families, each with a tokenizer of bytes that has its control tokens.

TRL's copies are read from the installed package. Those in `templates/` were written for these tests in the shape of
families that TRL has none of: what marks their turns, where their system text, tools and calls stand, what they do to
thoughts."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CONTROL = re.compile(
    r"<[|｜][^<>|｜\s]+[|｜]?>|<[^<>|｜\s]+[|｜]>|</?[a-z]+_of_[a-z]+>|</?seed:[a-z_]+>|\[/?[A-Z_]{3,}\]|\[\|[a-z]+\|\]"
)
ENDS = (
    "<|im_end|>",
    "<｜end▁of▁sentence｜>",
    "<|return|>",
    "<|end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<turn|>",
    "<|eot|>",
)
TRL = sorted(
    path.stem
    for path in Path(str(files("trl") / "chat_templates")).glob("*.jinja")
    if not path.stem.endswith("_training")
)
OTHERS = {
    "llama_2": ("</s>", ()),
    "mistral_3": ("</s>", ("[INST]",)),
    "magistral": ("</s>", ("[INST]", "[ARGS]", "[THINK]", "[/THINK]")),
    "seed_oss": (
        "<seed:eos>",
        ("<seed:bos>", "<seed:think>", "</seed:think>", "<seed:tool_call>", "</seed:tool_call>"),
    ),
    "kimi": ("<|im_end|>", ()),
    "granite": ("<|end_of_text|>", ()),
    "phi_4": ("<|im_end|>", ()),
    "olmo": ("<|endoftext|>", ("<|system|>", "<|user|>", "<|assistant|>")),
    "apertus": ("<|assistant_end|>", ("<|inner_prefix|>", "<|inner_suffix|>")),
    "exaone_4": ("[|endofturn|]", ("[|system|]", "[|user|]", "[|assistant|]", "[|tool|]")),
    "command_a_reasoning": ("<|END_OF_TURN_TOKEN|>", ()),
    "llama_4": ("<|eot|>", ()),
    "smollm3": ("<|im_end|>", ()),
    "qwq": ("<|im_end|>", ()),
    "zephyr": ("</s>", ("<|system|>", "<|user|>", "<|assistant|>")),
    "dots": ("<|endofresponse|>", ()),
}
"""What ends a turn, and control tokens that the template does not write, or that do not look like it."""
FAMILIES = [*TRL, *OTHERS]


def template_of(name: str) -> str:
    return (files("trl") / "chat_templates" / f"{name}.jinja").read_text(encoding="utf-8")


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    if name in OTHERS:
        file = Path(__file__).parent / "templates" / f"{name}.jinja"
        return tokenizer_with(file.read_text(encoding="utf-8"), *OTHERS[name])
    return tokenizer_with(template_of(name))


def tokenizer_with(template: str, end: str | None = None, more: tuple[str, ...] = ()) -> PreTrainedTokenizerFast:
    """Bytes, and every control token that the template writes."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator([], trainers.BpeTrainer(vocab_size=256, initial_alphabet=alphabet, show_progress=False))
    control = sorted({*CONTROL.findall(template), *more})
    end = end or next((each for each in ENDS if each in control), "</s>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<bos>", eos_token=end)
    tokenizer.add_tokens(control, special_tokens=True)
    tokenizer.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>"])  # as Qwen's: no special tokens
    tokenizer.chat_template = template
    return tokenizer


def rendered(tokenizer: Any, messages: Any, template: str | None = None, **more: Any) -> str:
    """By the template, at the day that prompts are of."""
    template = template or tokenizer.chat_template
    day = "{% macro strftime_now(format) %}26 July 2024{% endmacro %}"
    text: str = tokenizer.apply_chat_template(
        messages, tokenize=False, chat_template=day + template, **{"add_generation_prompt": True, **more}
    )
    return text


def encoded(tokenizer: Any, text: str) -> list[int]:
    found: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
    return found


def ids_of(tokenizer: Any, messages: Any, template: str | None = None, **more: Any) -> list[int]:
    return encoded(tokenizer, rendered(tokenizer, messages, template, **more))
