import pytest
from globs import Ignore, Matcher, PatternError, expand


def test_star() -> None:
    assert Matcher("*.py").matches("setup.py")
    assert not Matcher("*.py").matches("setup.txt")


def test_folders() -> None:
    assert Matcher("src/**/*.py").matches("src/a/b/x.py")


def test_classes() -> None:
    assert Matcher("[a-c]1").matches("b1")
    assert not Matcher("[a-c]1").matches("d1")


def test_braces() -> None:
    assert expand("{a,b}.c") == ["a.c", "b.c"]


def test_ignore() -> None:
    assert Ignore(["*.log"]).ignores("old.log")
    assert not Ignore(["*.log"]).ignores("old.txt")


def test_errors() -> None:
    with pytest.raises(PatternError):
        Matcher("[abc")
