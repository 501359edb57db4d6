"""The built-in miniature `tiny`: a small Llama with random weights and a byte-level tokenizer of its own.

It is for tests and for trying the pipeline in seconds: same code path as any other model, no skill. Everything derives
from constants in this file, so each machine with the same torch writes the same bytes. It encodes any text (bytes are
the alphabet); frequent words of the project, such as actions, are single tokens.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from crl.policies.miniature import write_llama

if TYPE_CHECKING:
    from tokenizers import Tokenizer

VOCABULARY = 512
"""Largest vocabulary, special tokens and the 256 bytes included."""
MAX_POSITIONS = 2048
SEED = 20_260_317
"""Seed of the random weights."""

_PAD, _SYSTEM, _USER, _ASSISTANT, _END = "<|pad|>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
_ACTIONS = "north south east west northeast northwest southeast southwest up down left right"
_MORE_ACTIONS = "search open close kick apply wait pickup key door stairs wall monster lava trap goal hole"
_WORDS = (
    "action actions goal move legal illegal you see reach stairs safe the agent is at grid symbols episode won lost "
    "experience advice turn observation not an answer with one word success failure outcome learn lesson when then "
    "avoid first next to of and in on"
)


def write_tiny(directory: Path) -> None:
    """Write model, tokenizer and chat template into an existing directory, in transformers' layout."""
    write_llama(
        directory, _tokenizer(), _TEMPLATE, pad=_PAD, end=_END, others=[_SYSTEM, _USER, _ASSISTANT],
        positions=MAX_POSITIONS, seed=SEED, hidden_size=64, intermediate_size=176, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, initializer_range=0.08,
    )  # fmt: skip


def _corpus() -> list[str]:
    """The words of prompts, observations and answers, in a fixed order; frequency decides what becomes a token."""
    lines: list[str] = []
    for action in f"{_ACTIONS} {_MORE_ACTIONS}".split():
        lines += [action, f" {action}", f"<action>{action}</action>", f"Action: {action}\n"] * 24
    for word in _WORDS.split():
        lines += [f" {word}", word.capitalize()] * 8
    for kind in ("ADD", "UPDATE", "RETURN", "KEEP", "MERGE", "DROP"):
        lines += [kind, f"{kind}: ", f'{{"kind": "{kind.lower()}", "text": ""}}'] * 24
    for symbols in product(".#@<>|-", repeat=2):
        lines.append("".join(symbols) + "\n")
    for cells in product("SFHGABCD", repeat=2):
        lines.append(" ".join(cells) + "\n")
    for left, right in product(_ACTIONS.split()[:4], repeat=2):
        lines.append(f"Goal: reach the stairs. Legal actions: {left}, {right}.\nYou see:\n")
        lines.append(f"When you see a trap to the {left}, move {right}.\n")
    return lines


def _tokenizer() -> Tokenizer:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        min_frequency=2,
        special_tokens=[_PAD, _SYSTEM, _USER, _ASSISTANT, _END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(_corpus(), trainer)
    return backend
