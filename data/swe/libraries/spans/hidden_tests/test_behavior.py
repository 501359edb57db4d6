import pytest
from spans import SpanSet, parse_spans


def test_touching_spans_become_one() -> None:
    spans = SpanSet([(1, 3), (7, 9)])
    spans.add(3, 5)
    assert list(spans) == [(1, 5), (7, 9)]
    spans.add(5, 7)
    assert list(spans) == [(1, 9)]


def test_add_before_between_and_after() -> None:
    spans = SpanSet([(10, 12)])
    spans.add(20, 22)
    spans.add(0, 2)
    spans.add(5, 6)
    assert list(spans) == [(0, 2), (5, 6), (10, 12), (20, 22)]


def test_add_inside_changes_nothing() -> None:
    spans = SpanSet([(0, 10), (20, 30)])
    spans.add(2, 4)
    assert list(spans) == [(0, 10), (20, 30)]


def test_add_over_several() -> None:
    spans = SpanSet([(2, 4), (6, 8), (10, 12), (40, 41)])
    spans.add(0, 11)
    assert list(spans) == [(0, 12), (40, 41)]


def test_empty_spans_do_nothing() -> None:
    spans = SpanSet([(0, 10)])
    spans.add(12, 12)
    spans.remove(5, 5)
    assert list(spans) == [(0, 10)]
    assert spans.overlaps(5, 5) is False


def test_remove_whole_and_across() -> None:
    spans = SpanSet([(0, 3), (5, 8), (10, 13)])
    spans.remove(5, 8)
    assert list(spans) == [(0, 3), (10, 13)]
    spans.remove(2, 11)
    assert list(spans) == [(0, 2), (11, 13)]


def test_remove_outside_changes_nothing() -> None:
    spans = SpanSet([(3, 6), (9, 12)])
    spans.remove(0, 3)
    spans.remove(6, 9)
    spans.remove(12, 20)
    assert list(spans) == [(3, 6), (9, 12)]


def test_the_stop_is_outside() -> None:
    spans = SpanSet([(3, 6)])
    assert 3 in spans
    assert 5 in spans
    assert 6 not in spans
    assert 2 not in spans
    assert spans.span_of(5) == (3, 6)
    assert spans.span_of(6) is None
    assert spans.span_of(1) is None


def test_touching_is_no_overlap() -> None:
    spans = SpanSet([(3, 6), (9, 12)])
    assert spans.overlaps(0, 3) is False
    assert spans.overlaps(6, 9) is False
    assert spans.overlaps(12, 13) is False
    assert spans.overlaps(0, 4) is True
    assert spans.overlaps(5, 7) is True
    assert spans.overlaps(4, 5) is True
    assert spans.overlaps(0, 20) is True


def test_gaps() -> None:
    spans = SpanSet([(2, 4), (6, 8)])
    assert spans.gaps(0, 10) == [(0, 2), (4, 6), (8, 10)]
    assert spans.gaps(2, 8) == [(4, 6)]
    assert spans.gaps(3, 7) == [(4, 6)]
    assert spans.gaps(6, 8) == []
    assert spans.gaps(4, 6) == [(4, 6)]
    assert spans.gaps(8, 12) == [(8, 12)]
    assert spans.gaps(5, 5) == []
    assert SpanSet().gaps(1, 3) == [(1, 3)]


def test_first_gap() -> None:
    spans = SpanSet([(2, 4), (7, 9)])
    assert spans.first_gap(2) == 0
    assert spans.first_gap(3) == 4
    assert spans.first_gap(4) == 9
    assert spans.first_gap(1, start=3) == 4
    assert spans.first_gap(2, start=4) == 4
    assert spans.first_gap(1, start=1) == 1
    assert spans.first_gap(5, start=20) == 20
    with pytest.raises(ValueError):
        spans.first_gap(0)


def test_measure_and_length() -> None:
    spans = SpanSet([(0, 3), (5, 9)])
    assert spans.measure == 7
    assert len(spans) == 2
    assert SpanSet().measure == 0


def test_intersection_of_many() -> None:
    left = SpanSet([(0, 4), (6, 10), (12, 14)])
    right = SpanSet([(2, 7), (9, 13), (20, 21)])
    assert list(left & right) == [(2, 4), (6, 7), (9, 10), (12, 13)]
    assert list(right & left) == [(2, 4), (6, 7), (9, 10), (12, 13)]
    assert list(left & SpanSet([(4, 6)])) == []


def test_difference_and_symmetric_difference() -> None:
    left, right = SpanSet([(0, 6)]), SpanSet([(2, 3), (5, 8)])
    assert list(left - right) == [(0, 2), (3, 5)]
    assert list(left ^ right) == [(0, 2), (3, 5), (6, 8)]


def test_operands_are_left_alone() -> None:
    left, right = SpanSet([(0, 6)]), SpanSet([(2, 9)])
    joined = left | right
    rest = left - right
    assert list(left) == [(0, 6)]
    assert list(right) == [(2, 9)]
    assert list(joined) == [(0, 9)]
    assert list(rest) == [(0, 2)]


def test_a_copy_is_independent() -> None:
    spans = SpanSet([(0, 6)])
    twin = spans.copy()
    twin.add(6, 8)
    assert list(spans) == [(0, 6)]
    assert spans != twin


def test_changing_while_iterating() -> None:
    spans = SpanSet([(0, 2), (4, 6), (8, 10)])
    for start, stop in spans:
        spans.remove(start, stop)
    assert list(spans) == []


def test_equality() -> None:
    assert SpanSet([(0, 2), (2, 4)]) == SpanSet([(0, 4)])
    assert SpanSet([(0, 2)]) != SpanSet([(0, 3)])
    assert SpanSet([(0, 2)]) != SpanSet([(1, 2)])
    assert SpanSet() != []


def test_parse_forms() -> None:
    assert list(parse_spans(" 5 , 1 - 3 ")) == [(1, 4), (5, 6)]
    assert list(parse_spans("-4--2,0")) == [(-4, -1), (0, 1)]
    assert list(parse_spans("")) == []
    assert list(parse_spans("  ")) == []
    assert list(parse_spans("1-3,4")) == [(1, 5)]
    assert list(parse_spans("7-7")) == [(7, 8)]


def test_parse_errors() -> None:
    with pytest.raises(ValueError, match="ends before"):
        parse_spans("5-3")
    with pytest.raises(ValueError, match="no span"):
        parse_spans("1,,2")
    with pytest.raises(ValueError, match="no span"):
        parse_spans("1-2x")


def test_text_of_a_set() -> None:
    assert str(SpanSet([(0, 1), (3, 5), (9, 12)])) == "0,3-4,9-11"
    assert str(SpanSet()) == ""
    assert repr(SpanSet([(1, 2)])) == "SpanSet([(1, 2)])"
    assert list(parse_spans(str(SpanSet([(-5, -2)])))) == [(-5, -2)]
