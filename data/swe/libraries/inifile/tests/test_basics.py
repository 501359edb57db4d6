import pytest
from inifile import IniError, dumps, loads


def test_sections_and_keys() -> None:
    document = loads("[a]\nx = 1\ny = 2\n[b]\nz = 3\n")
    assert document.sections() == ["a", "b"]
    assert document.keys("a") == ["x", "y"]
    assert document.get("b", "z") == "3"


def test_comments() -> None:
    document = loads("# top\n[a]\n; inner\nx = 1\n")
    assert document.get("a", "x") == "1"


def test_references() -> None:
    document = loads("root = /srv\n[a]\nx = ${root}/data\n")
    assert document.get("a", "x") == "/srv/data"


def test_types() -> None:
    document = loads("[a]\nn = 12\nb = yes\nl = p, q\n")
    assert document.get_int("a", "n") == 12
    assert document.get_bool("a", "b") is True
    assert document.get_list("a", "l") == ["p", "q"]


def test_missing_key() -> None:
    with pytest.raises(KeyError):
        loads("[a]\n").get("a", "x")


def test_error_has_its_line() -> None:
    with pytest.raises(IniError) as caught:
        loads("[a]\nnonsense\n")
    assert caught.value.line == 2


def test_dumps() -> None:
    assert dumps(loads("[a]\nx=1\n")) == "[a]\nx = 1\n"
