import pytest
from prefixes import PrefixMap


def test_values() -> None:
    words = PrefixMap({"car": 3})
    words["dog"] = 2
    assert words["car"] == 3
    assert "dog" in words
    assert "do" not in words


def test_missing_words() -> None:
    with pytest.raises(KeyError):
        PrefixMap()["car"]


def test_keys() -> None:
    assert PrefixMap({"b": 1, "ab": 2, "a": 3}).keys() == ["a", "ab", "b"]


def test_longest_prefix() -> None:
    assert PrefixMap({"car": 1, "dog": 2}).longest_prefix("cart") == "car"


def test_delete() -> None:
    words = PrefixMap({"car": 3, "card": 1})
    del words["card"]
    assert words.keys() == ["car"]


def test_completions() -> None:
    assert PrefixMap({"ab": 1, "ac": 2}).completions("a") == ["ac", "ab"]
