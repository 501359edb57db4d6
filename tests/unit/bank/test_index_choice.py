"""Which index a scope gets, what it learns from, and a cache that changes nothing but the time."""

import hashlib
import shutil

import numpy as np
import pyarrow as pa
import pytest

from crl.bank.index import ApproximateIndex, Base, ExactIndex, Quantizer, Scope, chosen_kind, open_index, searcher
from crl.bank.index.library import Searcher
from crl.config import RetrievalConfig
from crl.run.cache import Shelf, faults
from tests.unit.bank.vectors import clustered


def digests_of(vectors):
    return pa.array([hashlib.sha256(row.tobytes()).hexdigest() for row in vectors], pa.string())


def scope_of(vectors, rows=None):
    rows = np.arange(len(vectors)) if rows is None else np.asarray(rows, dtype=np.int64)
    return Scope(vectors, rows, digests_of(vectors[rows]))


def base_of(vectors):
    return Base(digests_of(vectors), lambda rows: vectors[rows])


def found(index, queries):
    return [(rows.tolist(), cosines.tolist()) for rows, cosines in index.nearest(queries, 8)]


VECTORS, QUERIES = clustered(1, 3000), clustered(2, 20)


def test_the_size_chooses_and_the_method_can():
    assert [chosen_kind("exact", rows, 8) for rows in (1, 10**7)] == ["exact", "exact"]
    assert [chosen_kind("approximate", rows, 8) for rows in (1, 10**7)] == ["approximate", "approximate"]
    assert chosen_kind("auto", 20_000, 384) == "exact"
    assert isinstance(open_index(scope_of(VECTORS), "auto"), ExactIndex)
    assert isinstance(open_index(scope_of(VECTORS), "approximate"), ApproximateIndex)
    assert RetrievalConfig().index == "auto"


@pytest.mark.parametrize(("gpu", "rows", "kind"), [
    (False, 100_000, "approximate"), (True, 100_000, "exact"), (True, 10**8, "approximate"),
])  # fmt: skip
def test_a_gpu_searches_exactly_as_long_as_the_embeddings_fit(monkeypatch, gpu, rows, kind):
    monkeypatch.setattr("crl.bank.index.exact.searcher", lambda: Searcher(gpu, "made"))
    assert chosen_kind("auto", rows, 384) == kind


@pytest.mark.gpu
def test_a_large_scope_is_searched_on_the_gpu():
    if not searcher().gpu:
        pytest.skip("needs a GPU and a FAISS with GPU support")
    vectors = clustered(1, 100_000)
    index = open_index(scope_of(vectors), "auto")
    assert isinstance(index, ExactIndex) and index.on_gpu
    assert found(index, QUERIES) == found(ExactIndex(vectors, gpu=False), QUERIES)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def test_results_do_not_depend_on_the_state_of_the_cache(tmp_path, monkeypatch):
    shelf = Shelf(tmp_path)
    scope, base = scope_of(VECTORS, np.arange(500, 3000)), base_of(VECTORS[:2500])
    expected = found(open_index(scope, "approximate", base=lambda: base), QUERIES)

    def opened():
        return found(open_index(scope, "approximate", base=lambda: base, cache=shelf), QUERIES)

    # From an earlier round, whose last 500 texts were not there yet, then as this round left it.
    open_index(scope_of(VECTORS[:2500]), "approximate", base=lambda: base, cache=shelf)
    with monkeypatch.context() as patched:
        encoded, encode = [], Quantizer.encode
        patched.setattr(Quantizer, "encode", lambda *given: encoded.append(len(given[2])) or encode(*given))
        patched.setattr(Quantizer, "learn", lambda *_: pytest.fail("learned again"))
        assert opened() == expected and encoded == [500]
        assert opened() == expected and encoded == [500]
    for path in sorted(tmp_path.rglob("*.*")):
        if path.is_file():
            damage(path)
            assert faults(tmp_path) and opened() == expected
    shutil.rmtree(tmp_path / "cache")
    assert opened() == expected
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").write_text("in the way")
    assert opened() == expected


def test_a_scope_keeps_the_quantizer_of_its_base_until_it_has_outgrown_it(monkeypatch):
    learned = []
    learn = Quantizer.learn.__func__
    monkeypatch.setattr(
        Quantizer, "learn", classmethod(lambda cls, sample, lists: learned.append(sample) or learn(cls, sample, lists))
    )
    for rows in (1500, 1499):
        base = base_of(VECTORS[:rows])
        open_index(scope_of(VECTORS), "approximate", base=lambda base=base: base)
    open_index(scope_of(VECTORS), "approximate", base=lambda: None)
    from_base, outgrown, alone = learned
    in_base = {row.tobytes() for row in VECTORS[:1500]}
    assert all(row.tobytes() in in_base for row in from_base)
    assert np.array_equal(outgrown, alone) and not all(row.tobytes() in in_base for row in outgrown)


def test_learning_does_not_depend_on_the_order_of_the_base_and_counts_a_text_once():
    shuffled = np.random.default_rng(1).permutation(np.concatenate([VECTORS, VECTORS[:700]]))
    for base in (VECTORS, shuffled):
        index = open_index(scope_of(VECTORS[:2000]), "approximate", base=lambda base=base: base_of(base))
        assert found(index, QUERIES) == found(open_index(scope_of(VECTORS[:2000]), "approximate",
                                                         base=lambda: base_of(VECTORS)), QUERIES)  # fmt: skip


def test_the_cache_keeps_the_codes_of_two_rounds(tmp_path):
    for end in (2000, 2100, 2200, 2300):
        open_index(scope_of(VECTORS[:end]), "approximate", base=lambda: base_of(VECTORS[:1500]), cache=Shelf(tmp_path))
    names = sorted(path.name.split("-")[0] for path in (tmp_path / "cache").iterdir())
    assert names == ["codes", "codes", "quantizer"]


def test_an_empty_scope_finds_nothing():
    assert found(open_index(scope_of(VECTORS, []), "approximate"), QUERIES) == [([], [])] * len(QUERIES)
