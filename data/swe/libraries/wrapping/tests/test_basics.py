import pytest
from wrapping import columns, dedent_block, fill_justified, shorten, wrap


def test_wrap() -> None:
    assert wrap("the quick brown fox", 10) == ["the quick", "brown fox"]


def test_hang() -> None:
    assert wrap("- item of a list", 9, hang="  ") == ["- item of", "  a list"]


def test_width_is_checked() -> None:
    with pytest.raises(ValueError):
        wrap("a", 0)


def test_columns() -> None:
    assert columns(["a", "b", "c"], 4) == "a  c\nb"


def test_shorten() -> None:
    assert shorten("short", 12) == "short"
    assert shorten("a long sentence here", 12) == "a long […]"


def test_dedent() -> None:
    assert dedent_block("  a\n    b\n") == "a\n  b\n"


def test_justified_single_line() -> None:
    assert fill_justified("a bc def", 8) == "a bc def"
