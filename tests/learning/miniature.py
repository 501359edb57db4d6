"""A transformer small enough to be trained from nothing inside a test, with a tokenizer for the texts of that test.

Every row of a map and every word of the corpus is one token, so sequences are short and a row is read at a glance; any
other text falls back to bytes. The weights are random: what it knows it has learned in the test.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path

_PAD, _END = "<|pad|>", "<|end|>"
_ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
_PIECES = r"\n| ?[@GHF](?: [@GHF])*(?![^\s])| ?[^\s]+"
"""Line feeds, rows of a plain FrozenLake map, words."""
_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def write_miniature(directory: Path, words: Sequence[str], *, side: int, seed: int, spread: float = 0.08) -> Path:
    """Write model, tokenizer and chat template of a random miniature for maps of a side; returns the directory.

    `spread` is the standard deviation of the weights. A wide one makes any two maps look different from the
    start, so that what is learned about one is not undone by the other.
    """
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    rows = [" ".join(cells) for cells in product("@GHF", repeat=side)]
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        [text for text in (*rows, *(f" {row}" for row in rows), *words) for _ in range(2)],
        trainers.BpeTrainer(
            vocab_size=4096,
            min_frequency=2,
            special_tokens=[_PAD, *_ROLES, _END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=_PAD,
        eos_token=_END,
        additional_special_tokens=_ROLES,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE
    end, pad = tokenizer.convert_tokens_to_ids([_END, _PAD])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(
            LlamaConfig(
                vocab_size=len(tokenizer),
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=2048,
                tie_word_embeddings=False,
                bos_token_id=None,
                eos_token_id=end,
                pad_token_id=pad,
                initializer_range=spread,
            )
        )
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory
