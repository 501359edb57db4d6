"""Miniatures: small Llamas with a word-level tokenizer, ordinary transformers checkpoints made from a list of words.

A word is a token, so an episode of the laboratory takes some fifty tokens and a round of them about a second on one
core. Everything derives from the arguments: equal words, sizes and seed write equal bytes with the same torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

PAD, END, GO = "<pad>", "<end>", "<go>"
"""Control tokens: padding, the end of an assistant's turn, and what precedes one."""
UNKNOWN = "?"
"""What a word outside the vocabulary is read as."""

_WORD_DEVIATION = 0.1
# A blank behind every text: words of two messages must not run together.
_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}<go>{{ message['content'] }}<end>"
    "{% else %}{{ message['content'] }} {% endif %}{% endfor %}{% if add_generation_prompt %}<go>{% endif %}"
)


def write_miniature(
    directory: Path,
    words: Sequence[str],
    *,
    width: int,
    layers: int,
    heads: int,
    positions: int,
    seed: int,
    parts: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Write model (random weights), tokenizer and chat template into an existing directory.

    Args:
        directory: where the checkpoint goes, in transformers' layout.
        words: the vocabulary; repeated words count once. A word that may begin a line is listed with a line feed, too.
        width: hidden size; a feed-forward layer has 8/3 of it, as Llama's.
        layers: number of layers.
        heads: attention heads of a layer; they divide the width.
        positions: longest sequence in tokens.
        seed: of the random weights.
        parts: words that begin as the sum of other words, for those made of several things (a symbol and its cell):
            what they have in common need not be learned word by word.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    vocabulary = {word: index for index, word in enumerate(dict.fromkeys([UNKNOWN, *words]))}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    # A word that begins a line is a word of its own: outputs in lines keep their lines, and a new line costs no token.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n?\S+"), behavior="removed", invert=True)

    def compose(model: Any) -> None:
        for embedding in (model.get_input_embeddings(), model.get_output_embeddings()):
            _compose(embedding.weight, vocabulary, parts or {})

    write_llama(
        directory, backend, _TEMPLATE, pad=PAD, end=END, others=[GO], positions=positions, seed=seed, prepare=compose,
        hidden_size=width, intermediate_size=width * 8 // 3, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=heads, tie_word_embeddings=False,
    )  # fmt: skip


def write_llama(
    directory: Path,
    backend: Tokenizer,
    template: str,
    *,
    pad: str,
    end: str,
    others: list[str],
    positions: int,
    seed: int,
    prepare: Callable[[Any], None] = lambda model: None,
    **sizes: Any,
) -> None:
    """Write a Llama of these sizes with random weights, its tokenizer and its chat template, as transformers do.

    `pad`, `end` and `others` are the control tokens; `prepare` changes the weights, with the same random numbers.
    """
    import torch
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=pad, eos_token=end, additional_special_tokens=others,
        model_max_length=positions, clean_up_tokenization_spaces=False,
    )  # fmt: skip
    tokenizer.chat_template = template
    ends = {
        name: tokenizer.convert_tokens_to_ids(text) for name, text in (("eos_token_id", end), ("pad_token_id", pad))
    }
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=positions,
        bos_token_id=None,
        dtype="float32",
        **ends,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config).float()
        prepare(model)
    model.generation_config = GenerationConfig(**ends)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _compose(weight_VD: torch.Tensor, vocabulary: Mapping[str, int], parts: Mapping[str, Sequence[str]]) -> None:
    """Draw the words again, wider than the layers, and make the composed ones of their parts, at the same length."""
    import torch

    with torch.no_grad():
        weight_VD.normal_(0.0, _WORD_DEVIATION)
        for word, listed in parts.items():
            rows_PD = weight_VD[[vocabulary[part] for part in listed]]
            weight_VD[vocabulary[word]] = rows_PD.sum(0) / len(listed) ** 0.5
