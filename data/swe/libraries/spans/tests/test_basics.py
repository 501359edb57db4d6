import pytest
from spans import SpanSet, parse_spans


def test_add_joins_what_overlaps() -> None:
    spans = SpanSet([(1, 4), (8, 10)])
    spans.add(3, 9)
    assert list(spans) == [(1, 10)]


def test_remove_splits() -> None:
    spans = SpanSet([(0, 10)])
    spans.remove(3, 5)
    assert list(spans) == [(0, 3), (5, 10)]


def test_contains() -> None:
    spans = SpanSet([(3, 6)])
    assert 4 in spans
    assert 9 not in spans


def test_union_and_intersection() -> None:
    left, right = SpanSet([(0, 5)]), SpanSet([(3, 9)])
    assert left | right == SpanSet([(0, 9)])
    assert left & right == SpanSet([(3, 5)])


def test_text() -> None:
    assert parse_spans("1-3,7") == SpanSet([(1, 4), (7, 8)])
    assert str(SpanSet([(1, 4)])) == "1-3"


def test_bad_span() -> None:
    with pytest.raises(ValueError):
        SpanSet([(4, 3)])
