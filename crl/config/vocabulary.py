"""The ids that a tokenizer and a model share: every id of a text has a row of the embeddings, and every id drawn is a
token.

A model often has more rows than its tokenizer has tokens: their number is rounded up, which suits the hardware. Nothing
ever taught the model about these rows, and their ids have no text. They are **absent**: where a token is drawn their
logits are minus infinity, and where an update computes its probability, too. So the policy is a distribution over the
tokens of the vocabulary, and so is every log-probability of the record: of the sampler, of the trainer before its step,
of the current weights and of the base model. A ratio of two of them is that of the policies that were sampled from.
With the mask in the sampler alone, every ratio would be too small by the probability that the trainer gives to absent
ids, and the gradient would raise their logits for tokens that went badly. vLLM is told the same with each request.
Where a tokenizer has a token for every row nothing is hidden, and no bit changes.

What draws and what learns both hold to this. Libraries of models are theirs: here none is imported.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from crl.config.models import pretrained

Logits = TypeVar("Logits", bound=Any)


def load_tokenizer(directory: Path, name: str | None = None) -> Any:
    """The tokenizer of a model's directory. `name`: what people call the model."""
    return pretrained(sys.modules["transformers"].AutoTokenizer, directory, name)


def generation_config(directory: Path, config: Any) -> Any:
    """The generation config of a model directory, else what the model's config says of it."""
    transformers = sys.modules["transformers"]
    if (directory / "generation_config.json").is_file():
        return transformers.GenerationConfig.from_pretrained(directory, local_files_only=True)
    return transformers.GenerationConfig.from_model_config(config)


def rows_of_model(config: Any) -> int:
    """Rows of the embeddings by a model's config, and ids that it can draw."""
    return int(config.get_text_config().vocab_size)


def absent_ids(tokenizer: Any, rows: int) -> list[int]:
    """Ids below `rows` that are no token of the tokenizer."""
    return sorted(set(range(rows)).difference(tokenizer.get_vocab().values()))


def absent_of(directory: Path, config: Any) -> list[int]:
    """Absent ids of a model by its directory; none where no tokenizer is beside the weights."""
    file, rows = directory / "tokenizer.json", rows_of_model(config)
    return _absent_of(directory, file.stat().st_mtime_ns, rows) if file.is_file() else []


@lru_cache(maxsize=8)
def _absent_of(directory: Path, changed: int, rows: int) -> list[int]:
    """A large tokenizer takes half a second to read."""
    return absent_ids(load_tokenizer(directory), rows)


def hide(logits_NV: Logits, absent: Any) -> Logits:
    """Logits of which those of absent ids (a tensor of them; None: none) are minus infinity, in place: they must not be
    needed otherwise."""
    if absent is not None:
        logits_NV.index_fill_(-1, absent, float("-inf"))
    return logits_NV
