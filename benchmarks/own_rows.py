"""Sampling by a model's own cache against `generate`, in equal batches: `python -m benchmarks.own_rows [pairs]`.

A model with windows smaller than its rows, of which transformers' `generate` samples the same number of tokens from the
same prompts, padded on the left. Both in turn, so that other load falls on both.
"""

from __future__ import annotations

import sys
import time
from statistics import median

import torch
from transformers import MistralConfig, MistralForCausalLM
from transformers.utils import logging

from crl.config import SamplingConfig
from crl.policies.exact import exact_sampling
from crl.policies.session import BatchSession
from crl.policies.turn import StopStrings

SHAPES = {
    "narrow": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 2, "num_attention_heads": 4,
               "num_key_value_heads": 2},
    "wide": {"hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 8, "num_attention_heads": 9,
             "num_key_value_heads": 3},
}  # fmt: skip
ROWS, TOKENS, VOCABULARY = 16, 24, 4096


def ours(model: MistralForCausalLM, prompts: list[list[int]]) -> None:
    """One turn of every row."""
    session = BatchSession(
        model, frozenset(), 512, prompts, range(len(prompts)), stops=lambda each: StopStrings(each, str), way="padded"
    )
    session.begin(range(len(prompts)), SamplingConfig(max_new_tokens=TOKENS))
    ended: set[int] = set()
    while len(ended) < len(prompts):
        ended |= session.advance().keys()
    session.close()


def theirs(model: MistralForCausalLM, prompts: list[list[int]]) -> None:
    """The same by `generate`."""
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(each)) + each for each in prompts])
    mask = torch.tensor([[0] * (width - len(each)) + [1] * len(each) for each in prompts])
    model.generate(
        ids, attention_mask=mask, do_sample=True, top_k=0, min_new_tokens=TOKENS, max_new_tokens=TOKENS, pad_token_id=0
    )


def main() -> None:
    """Print seconds of both, and the ratio of each pair."""
    logging.set_verbosity_error()
    pairs = int(sys.argv[1]) if sys.argv[1:] else 5
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(30, 90, (ROWS,), generator=generator).tolist()
    prompts = [torch.randint(5, VOCABULARY, (length,), generator=generator).tolist() for length in lengths]
    for name, shape in SHAPES.items():
        torch.manual_seed(2)
        model = MistralForCausalLM(MistralConfig(vocab_size=VOCABULARY, sliding_window=32, **shape)).eval()
        model.generation_config.eos_token_id = None
        assert exact_sampling(model, 512).way == "padded"
        ours(model, prompts[:2])
        theirs(model, prompts[:2])
        seconds = []
        for _ in range(pairs):
            begun = time.perf_counter()
            ours(model, prompts)
            between = time.perf_counter()
            theirs(model, prompts)
            seconds.append((between - begun, time.perf_counter() - between))
        ratios = sorted(one / other for one, other in seconds)
        mine, other = (median(each) for each in zip(*seconds, strict=True))
        spread = f"{median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{name}: ours {mine:.2f} s, generate {other:.2f} s; ratio {spread}, {pairs} pairs", flush=True)


if __name__ == "__main__":
    main()
