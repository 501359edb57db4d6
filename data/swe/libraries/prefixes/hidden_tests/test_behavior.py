import pytest
from prefixes import PrefixMap


class Counted(int):
    """A number that counts how often it was compared."""

    compared = 0

    def __lt__(self, other: int) -> bool:
        Counted.compared += 1
        return int(self) < int(other)


def test_prefixes_are_no_words() -> None:
    words = PrefixMap({"card": 1})
    assert "car" not in words
    assert words.get("car") is None
    assert words.get("car", 9) == 9
    with pytest.raises(KeyError):
        words["car"]
    with pytest.raises(KeyError):
        words["cards"]


def test_setting_again_replaces() -> None:
    words = PrefixMap({"car": 1})
    words["car"] = 2
    assert words["car"] == 2
    assert len(words) == 1
    assert words.count("c") == 1


def test_none_is_a_value() -> None:
    words = PrefixMap({"car": None})
    assert "car" in words
    assert words.get("car", 9) is None
    assert len(words) == 1


def test_the_empty_word() -> None:
    words = PrefixMap({"": 0, "a": 1})
    assert words[""] == 0
    assert words.keys() == ["", "a"]
    assert words.longest_prefix("xyz") == ""
    del words[""]
    assert words.keys() == ["a"]
    assert words.longest_prefix("xyz") is None


def test_deleting_a_prefix_keeps_longer_words() -> None:
    words = PrefixMap({"car": 3, "card": 1, "care": 7})
    del words["car"]
    assert words.keys() == ["card", "care"]
    assert len(words) == 2
    assert words.count("car") == 2


def test_deleting_removes_branches() -> None:
    words = PrefixMap({"car": 3, "cards": 1})
    assert words.node_count == 6
    del words["cards"]
    assert words.node_count == 4
    assert words["car"] == 3
    del words["car"]
    assert words.node_count == 1
    assert len(words) == 0


def test_deleting_what_is_missing_changes_nothing() -> None:
    words = PrefixMap({"card": 1})
    with pytest.raises(KeyError):
        del words["car"]
    with pytest.raises(KeyError):
        del words["cat"]
    with pytest.raises(KeyError):
        del words["cards"]
    assert words.keys() == ["card"]
    assert words.count() == 1
    assert words.node_count == 5


def test_walk_is_sorted() -> None:
    words = PrefixMap({"b": 1, "a": 2, "ab": 3, "aa": 4, "c": 5})
    assert list(words) == ["a", "aa", "ab", "b", "c"]
    assert list(words.walk("a")) == [("a", 2), ("aa", 4), ("ab", 3)]
    assert list(words.walk("x")) == []
    assert list(words.walk("aax")) == []


def test_count() -> None:
    words = PrefixMap({"car": 3, "card": 1, "dog": 2})
    assert words.count() == 3
    assert words.count("ca") == 2
    assert words.count("card") == 1
    assert words.count("x") == 0
    assert words.count("doggy") == 0


def test_completions_by_value_then_word() -> None:
    words = PrefixMap({"car": 3, "card": 1, "care": 7, "cast": 3, "dog": 9})
    assert words.completions("ca") == ["care", "car", "cast", "card"]
    assert words.completions("ca", 2) == ["care", "car"]
    assert words.completions("card") == ["card"]
    assert words.completions("x") == []
    with pytest.raises(ValueError):
        words.completions("c", 0)
    assert words.completions("c", 1) == ["care"]


def test_completions_show_five() -> None:
    words = PrefixMap(dict.fromkeys("gfedcba", 0))
    assert words.completions("") == ["a", "b", "c", "d", "e"]


def test_completions_look_only_below_the_prefix() -> None:
    words = PrefixMap({"a": Counted(1), "ab": Counted(2), "b": Counted(3), "c": Counted(4), "d": Counted(5)})
    Counted.compared = 0
    assert words.completions("a") == ["ab", "a"]
    assert Counted.compared <= 2
    mixed = PrefixMap({"a": 1, "ab": 2, "x": "text"})
    assert mixed.completions("a") == ["ab", "a"]


def test_longest_prefix_takes_the_longest() -> None:
    words = PrefixMap({"a": 1, "abc": 2, "abcde": 3})
    assert words.longest_prefix("abcd") == "abc"
    assert words.longest_prefix("abcde") == "abcde"
    assert words.longest_prefix("ab") == "a"
    assert words.longest_prefix("b") is None
    assert words.longest_prefix("") is None
    assert words.longest_prefix("abx") == "a"


def test_unique_prefixes() -> None:
    words = PrefixMap({"car": 1, "card": 2, "dog": 3, "door": 4})
    assert words.unique_prefix("door") == "doo"
    assert words.unique_prefix("dog") == "dog"
    assert words.unique_prefix("card") == "card"
    assert words.unique_prefix("car") == "car"
    assert PrefixMap({"solo": 1}).unique_prefix("solo") == ""
    with pytest.raises(KeyError):
        words.unique_prefix("do")


def test_within_one_step() -> None:
    words = PrefixMap({"car": 1, "card": 1, "care": 1, "cat": 1, "dog": 1})
    assert words.within("cart", 1) == ["car", "card", "care", "cat"]
    assert words.within("car", 0) == ["car"]
    assert words.within("ca", 0) == []
    assert words.within("do", 1) == ["dog"]
    assert words.within("dogs", 1) == ["dog"]
    assert words.within("dig", 1) == ["dog"]


def test_within_more_steps() -> None:
    words = PrefixMap({"kitten": 1, "": 1, "sitting": 1})
    assert words.within("sitten", 1) == ["kitten"]
    assert words.within("sitten", 2) == ["kitten", "sitting"]
    assert words.within("kitten", 3) == ["kitten", "sitting"]
    assert words.within("ab", 2) == [""]
    assert words.within("ab", 1) == []
    assert words.within("itten", 1) == ["kitten"]
    with pytest.raises(ValueError):
        words.within("a", -1)


def test_update_and_maps_are_separate() -> None:
    source = {"a": 1}
    first, second = PrefixMap(source), PrefixMap()
    first.update({"b": 2, "a": 3})
    assert list(first.walk()) == [("a", 3), ("b", 2)]
    assert source == {"a": 1}
    assert len(second) == 0


def test_pop_prefix() -> None:
    words = PrefixMap({"car": 3, "card": 1, "dog": 2})
    assert words.pop_prefix("car") == {"car": 3, "card": 1}
    assert words.keys() == ["dog"]
    assert words.node_count == 4
    assert words.pop_prefix("x") == {}
    assert words.pop_prefix("") == {"dog": 2}
    assert words.node_count == 1
