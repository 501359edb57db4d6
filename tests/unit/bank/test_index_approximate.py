"""The approximate index: exact where it reads everything, near it elsewhere, and the same whatever else runs."""

import numpy as np
import pytest

from crl.bank.index import ApproximateIndex, ExactIndex, Quantizer
from tests.unit.bank.vectors import clustered, unit


def index_of(vectors, rows=None, *, lists=16, **options):
    rows = np.arange(len(vectors)) if rows is None else np.asarray(rows)
    quantizer = Quantizer.learn(vectors[rows], lists)
    return ApproximateIndex(vectors, rows, quantizer, quantizer.encode(vectors, rows), **options)


def plain(found):
    return [(rows.tolist(), cosines.tolist()) for rows, cosines in found]


@pytest.mark.parametrize("dimension", [2, 7, 64, 384])
@pytest.mark.parametrize("count", [1, 16, 5000])
def test_reading_everything_is_exact_search(dimension, count):
    vectors = unit(1, 300, dimension)[np.random.default_rng(0).integers(0, 300, 500)]
    queries = unit(2, 9, dimension)
    found = index_of(vectors, probed=16, read=len(vectors)).nearest(queries, count)
    assert plain(found) == plain(ExactIndex(vectors, gpu=False).nearest(queries, count))


def test_recall_where_vectors_lie_in_clusters():
    vectors, queries = clustered(1, 20_000), clustered(2, 64)
    found = index_of(vectors, lists=64, probed=12).nearest(queries, 16)
    exact = ExactIndex(vectors, gpu=False).nearest(queries, 16)
    hits = [len(np.intersect1d(a, b)) for (a, _), (b, _) in zip(found, exact, strict=True)]
    assert sum(hits) / (16 * len(queries)) > 0.95
    for (rows, cosines), query in zip(found, queries, strict=True):
        assert cosines.tolist() == ExactIndex(vectors[np.sort(rows)], gpu=False).nearest(query[None], 16)[0][1].tolist()


def test_a_query_finds_the_same_alone_and_on_any_number_of_threads():
    import faiss

    vectors, queries = clustered(1, 6000), clustered(2, 40)
    threads = faiss.omp_get_max_threads()
    together = plain(index_of(vectors, lists=32, probed=4, read=2).nearest(queries, 8))
    try:
        for number in (1, 2, 3):
            faiss.omp_set_num_threads(number)
            again = index_of(vectors, lists=32, probed=4, read=2)
            assert plain(again.nearest(queries, 8)) == together
            assert [plain(again.nearest(query[None], 8))[0] for query in queries] == together
    finally:
        faiss.omp_set_num_threads(threads)


def test_a_quantizer_is_in_whole_numbers_and_a_vector_has_its_code_whatever_stands_beside_it():
    vectors = clustered(3, 2000)
    quantizer = Quantizer.learn(vectors, 16)
    assert (quantizer.centroids_LD == np.rint(quantizer.centroids_LD)).all()
    assert quantizer.digest() == Quantizer.learn(vectors, 16).digest() != Quantizer.learn(vectors[1:], 16).digest()
    every = quantizer.encode(vectors, np.arange(2000))
    some = np.array([1999, 3, 700])
    few = quantizer.encode(vectors, some)
    assert few.lists_N.tolist() == every.lists_N[some].tolist()
    assert few.codes_NB.tolist() == every.codes_NB[some].tolist()


def test_rows_outside_the_scope_are_never_found():
    vectors, rows = clustered(1, 3000), np.arange(0, 3000, 3)
    queries = vectors[1:30]  # themselves outside
    found = index_of(vectors, rows, probed=16, read=1000).nearest(queries, 16)
    assert plain(found) == plain(ExactIndex(vectors[rows], gpu=False).nearest(queries, 16))


def test_lists_that_hold_too_little_are_made_up_for():
    vectors = unit(1, 40, 16)
    found = index_of(vectors, lists=40, probed=1).nearest(unit(2, 5, 16), 16)
    assert all(len(rows) == len(set(rows.tolist())) == 16 for rows, _ in found)
