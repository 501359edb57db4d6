"""A model of any shape with random weights and a tokenizer made here: as fast and as large as a real one, no skill.

    python benchmarks/made_model.py SHAPE DIRECTORY

Shapes: tiny, 1.5b and 7b (those of Qwen2.5). Nothing is downloaded. The tokenizer is byte-level BPE over this project's
own prompts, filled up to the vocabulary of the shape with entries that no text is encoded to, so any id that is sampled
has a text; its chat format is ChatML. Weights are bfloat16, and made on the GPU where there is one.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
MAX_POSITIONS = 32_768
_LEARNED = 8_000
"""Entries of the vocabulary that are learned from text; the fillers come behind them."""
_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen2 model."""

    hidden: int
    intermediate: int
    layers: int
    heads: int
    key_value_heads: int
    vocabulary: int
    tied: bool = True


SHAPES = {
    "tiny": Shape(64, 176, 2, 4, 2, 1024),
    "1.5b": Shape(1536, 8960, 28, 12, 2, 151_936),
    "7b": Shape(3584, 18_944, 28, 28, 4, 152_064, tied=False),
}


def write_model(directory: Path, shape: Shape) -> int:
    """Write model and tokenizer in transformers' layout; the number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, Qwen2Config

    tokenizer = _tokenizer(shape.vocabulary)
    end = tokenizer.convert_tokens_to_ids(_SPECIAL[2])
    config = Qwen2Config(
        vocab_size=shape.vocabulary,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=tokenizer.pad_token_id,
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with torch.device("cuda" if torch.cuda.is_available() else "cpu"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=tokenizer.pad_token_id)
    directory.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return int(model.num_parameters())


def _tokenizer(vocabulary: int) -> Any:
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(vocabulary, _LEARNED),
        special_tokens=list(_SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    pages = sorted((ROOT / "conf/prompts").glob("*.yaml"))
    backend.train_from_iterator((page.read_text(encoding="utf-8") for page in pages), trainer)
    content = json.loads(backend.to_str())
    entries = content["model"]["vocab"]
    entries |= {f"Ġfiller{index}": index for index in range(len(entries), vocabulary)}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        pad_token=_SPECIAL[0],
        eos_token=_SPECIAL[2],
        additional_special_tokens=[_SPECIAL[1]],
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SHAPES:
        raise SystemExit(__doc__)
    print(f"{write_model(Path(sys.argv[2]), SHAPES[sys.argv[1]]):,} parameters")
