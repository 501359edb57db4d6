import pytest
from undoing import Edit, History, TextBuffer


def test_undo_and_redo() -> None:
    text = TextBuffer("hello")
    text.insert(5, " world")
    text.history.undo()
    assert text.text == "hello"
    text.history.redo()
    assert text.text == "hello world"


def test_nothing_to_undo() -> None:
    assert History().undo() is None
    assert History().redo() is None


def test_delete() -> None:
    text = TextBuffer("hello")
    assert text.delete(1, 3) == "el"
    assert text.text == "hlo"


def test_transaction() -> None:
    text = TextBuffer("abc")
    with text.history.transaction("both"):
        text.insert(0, "x")
        text.insert(4, "y")
    assert text.history.names() == ["both"]
    text.history.undo()
    assert text.text == "abc"


def test_do_returns_the_result() -> None:
    assert History().do(Edit("e", lambda: 7, lambda: None)) == 7


def test_limit_is_checked() -> None:
    with pytest.raises(ValueError):
        History(limit=0)
