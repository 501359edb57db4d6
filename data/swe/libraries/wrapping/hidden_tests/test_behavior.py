import pytest
from wrapping import columns, dedent_block, fill_justified, shorten, wrap


def test_lines_may_be_exactly_as_wide() -> None:
    assert wrap("abcd efgh", 9) == ["abcd efgh"]
    assert wrap("abcd efgh", 8) == ["abcd", "efgh"]
    assert wrap("abcd", 4) == ["abcd"]


def test_blanks_and_line_ends_are_one_blank() -> None:
    assert wrap("  a \t b\nc  ", 20) == ["a b c"]


def test_empty_texts_have_no_lines() -> None:
    assert wrap("", 5) == []
    assert wrap(" \n\n ", 5) == []


def test_paragraphs() -> None:
    assert wrap("a b\n\nc\n \t\n\n  d", 10) == ["a b", "", "c", "", "d"]


def test_long_words_are_cut() -> None:
    assert wrap("abcdefghij", 4) == ["abcd", "efgh", "ij"]
    assert wrap("a abcdefghij b", 4) == ["a", "abcd", "efgh", "ij b"]
    assert wrap("abcdefgh i", 4) == ["abcd", "efgh", "i"]


def test_long_words_with_indents() -> None:
    assert wrap("abcdefghij", 5, indent="> ", hang="-") == ["> abc", "-defg", "-hij"]


def test_indents_of_each_paragraph() -> None:
    lines = wrap("aa bb cc\n\ndd ee ff", 6, indent="  ", hang=" ")
    assert lines == ["  aa", " bb cc", "", "  dd", " ee ff"]


def test_indents_count_for_the_width() -> None:
    assert wrap("a b", 3, indent="--") == ["--a", "b"]
    with pytest.raises(ValueError):
        wrap("a", 2, indent="--")
    with pytest.raises(ValueError):
        wrap("a", 2, hang="   ")


def test_words_break_after_hyphens() -> None:
    assert wrap("a well-known one", 7) == ["a well-", "known", "one"]
    assert wrap("a well-known one", 12) == ["a well-known", "one"]
    assert wrap("well-known", 5) == ["well-", "known"]


def test_no_break_after_other_hyphens() -> None:
    assert wrap("see 3-4 or -x", 6) == ["see", "3-4 or", "-x"]
    assert wrap("to -verbose", 5) == ["to", "-verb", "ose"]


def test_hyphens_can_be_kept() -> None:
    assert wrap("a well-known one", 10, hyphens=False) == ["a", "well-known", "one"]


def test_words_join_again_behind_a_hyphen() -> None:
    assert wrap("one-two-three four", 8) == ["one-two-", "three", "four"]


def test_justified_lines_are_full() -> None:
    assert fill_justified("aa bb cc dd", 8) == "aa bb cc\ndd"
    assert fill_justified("a b c dddddd", 7) == "a  b  c\ndddddd"
    assert fill_justified("a b c dddddd", 8) == "a   b  c\ndddddd"
    assert fill_justified("a b cc ddddddd", 9) == "a   b  cc\nddddddd"


def test_justified_single_words_and_paragraph_ends() -> None:
    assert fill_justified("abc defgh ij", 6) == "abc\ndefgh\nij"
    assert fill_justified("a bb\n\nc dd eeee", 5) == "a bb\n\nc  dd\neeee"


def test_columns_read_downwards() -> None:
    assert columns(["one", "two", "three", "four", "five"], 12) == "one    four\ntwo    five\nthree"
    assert columns(["a", "b", "c", "d"], 7, gap=2) == "a  c\nb  d"
    assert columns(["a", "b", "c"], 7) == "a  b  c"
    assert columns(["a", "b", "c"], 6) == "a  c\nb"


def test_columns_without_room() -> None:
    assert columns(["abcdef", "gh"], 3) == "abcdef\ngh"
    assert columns([], 10) == ""
    assert columns(["a"], 1) == "a"
    assert columns(["a", "b", "c"], 3, gap=0) == "abc"


def test_columns_are_checked() -> None:
    with pytest.raises(ValueError):
        columns(["a"], 0)
    with pytest.raises(ValueError):
        columns(["a"], 5, gap=-1)


def test_shorten_keeps_what_fits() -> None:
    assert shorten("one two three", 13) == "one two three"
    assert shorten("one two three", 12) == "one two […]"
    assert shorten("one two three", 11) == "one two […]"
    assert shorten("one two three", 10) == "one […]"
    assert shorten("one two three", 7) == "one […]"
    assert shorten("one two three", 6) == "[…]"


def test_shorten_blanks_and_markers() -> None:
    assert shorten("  one \n two ", 7) == "one two"
    assert shorten("one two three", 9, marker="...") == "one ..."
    assert shorten("", 5) == ""
    with pytest.raises(ValueError):
        shorten("abc", 2)
    assert shorten("abcd", 3) == "[…]"


def test_dedent_takes_the_common_margin() -> None:
    assert dedent_block("    a\n  b\n   c") == "  a\nb\n c"
    assert dedent_block("a\n  b") == "a\n  b"
    assert dedent_block("  a\nb") == "  a\nb"


def test_dedent_ignores_lines_of_blanks() -> None:
    assert dedent_block("  a\n\n \n  b\n") == "a\n\n\nb\n"
    assert dedent_block("  a\n      \n  b") == "a\n\nb"
    assert dedent_block("   ") == ""
    assert dedent_block("") == ""


def test_dedent_tells_tabs_from_blanks() -> None:
    assert dedent_block("\ta\n  b") == "\ta\n  b"
    assert dedent_block("\t a\n\t b") == "a\nb"
    assert dedent_block(" \ta\n  b") == "\ta\n b"
