import pytest
from delimited import DelimitedError, Dialect, read_records, read_rows, sniff, write_rows


def test_plain_rows() -> None:
    assert read_rows("a,b\n1,2\n") == [["a", "b"], ["1", "2"]]


def test_quoted_field() -> None:
    assert read_rows('"a,b",c\n') == [["a,b", "c"]]


def test_records() -> None:
    assert read_records("x,y\n1,2\n") == [{"x": "1", "y": "2"}]


def test_write() -> None:
    assert write_rows([["a", "b,c"], [1, 2]]) == 'a,"b,c"\n1,2\n'


def test_sniff() -> None:
    assert sniff("a;b\n1;2\n").delimiter == ";"


def test_errors() -> None:
    with pytest.raises(DelimitedError):
        read_rows('a,"b\n')
    with pytest.raises(ValueError):
        Dialect(delimiter="ab")
