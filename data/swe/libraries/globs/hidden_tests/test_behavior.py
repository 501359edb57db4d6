import pytest
from globs import Ignore, Matcher, PatternError, expand


class Name(str):
    """A name that counts how often one of its letters is looked at."""

    looks = 0

    def __getitem__(self, index: object) -> str:
        Name.looks += 1
        return super().__getitem__(index)  # type: ignore[index]


def test_star_stays_in_its_part() -> None:
    assert Matcher("*.py").matches("a/b.py") is False
    assert Matcher("a/*").matches("a/b") is True
    assert Matcher("a/*").matches("a/b/c") is False
    assert Matcher("a/*/c").matches("a/b/c") is True
    assert Matcher("a/*/c").matches("a/c") is False


def test_star_takes_nothing_too() -> None:
    assert Matcher("a*").matches("a") is True
    assert Matcher("*a*").matches("a") is True
    assert Matcher("a*b*c").matches("abc") is True
    assert Matcher("a*b*c").matches("a1b2b3c") is True
    assert Matcher("a*b*c").matches("a1c2b") is False
    assert Matcher("*").matches("") is True


def test_several_stars_in_a_part() -> None:
    assert Matcher("a**b").matches("axyb") is True
    assert Matcher("a**b").matches("a/b") is False
    assert Matcher("***").matches("abc") is True


def test_question_mark() -> None:
    assert Matcher("a?c").matches("abc") is True
    assert Matcher("a?c").matches("ac") is False
    assert Matcher("a?c").matches("a/c") is False
    assert Matcher("??").matches("abc") is False


def test_the_whole_path_counts() -> None:
    assert Matcher("a.c").matches("a.cc") is False
    assert Matcher("a.c").matches("xa.c") is False
    assert Matcher("a.c").matches("abc") is False
    assert Matcher("a/b").matches("a/b/c") is False
    assert Matcher("a/b").matches("a") is False


def test_any_number_of_folders() -> None:
    assert Matcher("src/**/x.py").matches("src/x.py") is True
    assert Matcher("src/**/x.py").matches("src/a/b/c/x.py") is True
    assert Matcher("src/**/x.py").matches("other/x.py") is False
    assert Matcher("**/x.py").matches("x.py") is True
    assert Matcher("src/**").matches("src/a/b") is True
    assert Matcher("**").matches("a/b/c") is True
    assert Matcher("**/a/**/b").matches("x/a/y/z/b") is True
    assert Matcher("**/a/**/b").matches("a/b") is True
    assert Matcher("**/**/b").matches("b") is True
    assert Matcher("a/**/b").matches("a/x") is False


def test_class_members() -> None:
    assert Matcher("[abc]").matches("b") is True
    assert Matcher("[abc]").matches("d") is False
    assert Matcher("[!abc]").matches("b") is False
    assert Matcher("[!abc]").matches("d") is True
    assert Matcher("[a-cx]").matches("x") is True
    assert Matcher("[a-c0-3]").matches("2") is True
    assert Matcher("[a-c0-3]").matches("4") is False
    assert Matcher("[a-c]").matches("c") is True


def test_class_special_members() -> None:
    assert Matcher("[]a]").matches("]") is True
    assert Matcher("[]a]").matches("a") is True
    assert Matcher("[!]a]").matches("]") is False
    assert Matcher("[!]a]").matches("b") is True
    assert Matcher("[a-]").matches("-") is True
    assert Matcher("[-a]").matches("-") is True
    assert Matcher("[a-]").matches("b") is False
    assert Matcher("[*]x").matches("*x") is True
    assert Matcher("[*]x").matches("ax") is False


def test_backslash() -> None:
    assert Matcher(r"a\*").matches("a*") is True
    assert Matcher(r"a\*").matches("ab") is False
    assert Matcher(r"\[a]").matches("[a]") is True
    assert Matcher(r"\\x").matches("\\x") is True
    with pytest.raises(PatternError, match="nothing behind the backslash at 3"):
        Matcher("a/b\\")


def test_errors_have_their_position() -> None:
    with pytest.raises(PatternError, match=r"\[ without \] at 4"):
        Matcher("src/[ab")
    with pytest.raises(PatternError, match="at 1"):
        Matcher("a[]")
    with pytest.raises(PatternError, match="the range c-a is empty at 2"):
        Matcher("ab[c-a]")
    with pytest.raises(PatternError, match=r"\{ without \} at 1"):
        expand("a{b,c")


def test_hidden_names() -> None:
    assert Matcher("*").matches(".git") is False
    assert Matcher("?git").matches(".git") is False
    assert Matcher("[.]git").matches(".git") is False
    assert Matcher(".*").matches(".git") is True
    assert Matcher(r"\.git").matches(".git") is True
    assert Matcher("**/x").matches(".a/x") is False
    assert Matcher("**/.a/x").matches("b/.a/x") is True
    assert Matcher("a*").matches("a.b") is True


def test_hidden_names_if_wanted() -> None:
    assert Matcher("*", hidden=True).matches(".git") is True
    assert Matcher("**/x", hidden=True).matches(".a/x") is True


def test_many_stars_take_little_time() -> None:
    Name.looks = 0
    name = Name("a" * 60)
    matcher = Matcher("*a" * 12 + "b")
    assert matcher._fits(matcher._parts[0], name) is False
    assert Name.looks < 60 * 60


def test_filter_keeps_the_order() -> None:
    assert Matcher("*.c").filter(["b.c", "a.c", "x.h", "d/a.c"]) == ["b.c", "a.c"]


def test_expand_several() -> None:
    assert expand("{a,b}{1,2}") == ["a1", "a2", "b1", "b2"]
    assert expand("x{a,b{1,2}}y") == ["xay", "xb1y", "xb2y"]
    assert expand("a{,b}c") == ["ac", "abc"]
    assert expand("plain") == ["plain"]
    assert expand("{a,b}/{c}") == ["a/{c}", "b/{c}"]


def test_expand_without_comma_or_with_backslash() -> None:
    assert expand("{a}") == ["{a}"]
    assert expand("{a{b,c}}") == ["{ab}", "{ac}"]
    assert expand(r"\{a,b}") == [r"\{a,b}"]
    assert expand(r"{a\,b,c}") == [r"a\,b", "c"]
    assert expand("{}x") == ["{}x"]


def test_ignored_names_at_any_depth() -> None:
    ignore = Ignore(["*.log"])
    assert ignore.ignores("a/b/old.log") is True
    assert ignore.ignores(".hidden.log") is True
    assert ignore.ignores("old.log.txt") is False


def test_patterns_with_a_slash_count_from_the_top() -> None:
    ignore = Ignore(["/todo.txt", "doc/*.md"])
    assert ignore.ignores("todo.txt") is True
    assert ignore.ignores("a/todo.txt") is False
    assert ignore.ignores("doc/a.md") is True
    assert ignore.ignores("x/doc/a.md") is False
    assert ignore.ignores("doc/b/a.md") is False


def test_folders_only() -> None:
    ignore = Ignore(["build/"])
    assert ignore.ignores("build") is False
    assert ignore.ignores("build", folder=True) is True
    assert ignore.ignores("build/a/b.o") is True
    assert ignore.ignores("src/build/x") is True


def test_the_last_pattern_decides() -> None:
    ignore = Ignore(["*.log", "!keep.log", "a/keep.log"])
    assert ignore.ignores("keep.log") is False
    assert ignore.ignores("b/keep.log") is False
    assert ignore.ignores("a/keep.log") is True
    assert ignore.ignores("x.log") is True


def test_what_is_in_an_ignored_folder_cannot_be_taken_back() -> None:
    ignore = Ignore(["build/", "!build/keep.txt"])
    assert ignore.ignores("build/keep.txt") is True
    files = Ignore(["build/*", "!build/keep.txt"])
    assert files.ignores("build/keep.txt") is False
    assert files.ignores("build/other.txt") is True


def test_comments_blanks_and_braces() -> None:
    ignore = Ignore(["# *.py", "", "  ", " *.{o,so} "])
    assert ignore.ignores("a.py") is False
    assert ignore.ignores("a.o") is True
    assert ignore.ignores("a.so") is True
    assert ignore.filter(["a.py", "b.o", "c/d.so", "e"]) == ["a.py", "e"]
