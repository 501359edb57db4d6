import pytest
from undoing import Edit, History, TextBuffer


def step(log: list[str], name: str) -> Edit:
    return Edit(name, lambda: log.append(name), lambda: log.append(f"-{name}"))


def test_undo_goes_backwards() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    history.do(step(log, "b"))
    assert history.undo() == "b"
    assert history.undo() == "a"
    assert history.undo() is None
    assert log == ["a", "b", "-b", "-a"]
    assert history.undone_names() == ["a", "b"]


def test_redo_goes_forwards() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    history.do(step(log, "b"))
    history.undo()
    history.undo()
    assert history.redo() == "a"
    assert history.redo() == "b"
    assert history.redo() is None
    assert log == ["a", "b", "-b", "-a", "a", "b"]
    assert history.names() == ["a", "b"]


def test_a_new_edit_forgets_what_was_undone() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    history.undo()
    history.do(step(log, "b"))
    assert history.redo() is None
    assert history.names() == ["b"]
    assert history.undone_names() == []


def test_limit_forgets_the_oldest() -> None:
    log: list[str] = []
    history = History(limit=2)
    history.do(step(log, "a"))
    history.do(step(log, "b"))
    history.do(step(log, "c"))
    assert history.names() == ["b", "c"]
    assert history.undo() == "c"
    assert history.undo() == "b"
    assert history.undo() is None


def test_histories_are_separate() -> None:
    first, second = Edit("a", list, list), Edit("b", list, list)
    first.data["x"] = 1
    assert second.data == {}
    history = History()
    history.add(first)
    assert History().names() == []


def test_changed_follows_undo_and_redo() -> None:
    log: list[str] = []
    history = History()
    assert history.changed is False
    history.do(step(log, "a"))
    assert history.changed is True
    history.mark_saved()
    assert history.changed is False
    history.do(step(log, "b"))
    assert history.changed is True
    history.undo()
    assert history.changed is False
    history.undo()
    assert history.changed is True
    history.redo()
    assert history.changed is False


def test_what_was_saved_can_be_lost() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    history.mark_saved()
    history.undo()
    history.do(step(log, "b"))
    assert history.changed is True
    history.undo()
    assert history.changed is True


def test_what_was_saved_can_be_forgotten() -> None:
    log: list[str] = []
    history = History(limit=2)
    history.do(step(log, "a"))
    history.mark_saved()
    history.do(step(log, "b"))
    history.do(step(log, "c"))
    history.undo()
    history.undo()
    assert history.changed is False
    history.do(step(log, "d"))
    history.do(step(log, "e"))
    history.do(step(log, "f"))
    history.undo()
    history.undo()
    assert history.changed is True


def test_transactions_are_undone_backwards() -> None:
    log: list[str] = []
    history = History()
    with history.transaction("t"):
        history.do(step(log, "a"))
        history.do(step(log, "b"))
    assert history.names() == ["t"]
    assert history.undo() == "t"
    assert history.redo() == "t"
    assert log == ["a", "b", "-b", "-a", "a", "b"]


def test_transactions_nest() -> None:
    log: list[str] = []
    history = History()
    with history.transaction("outer"):
        history.do(step(log, "a"))
        with history.transaction("inner"):
            history.do(step(log, "b"))
        history.do(step(log, "c"))
    assert history.names() == ["outer"]
    history.undo()
    assert log == ["a", "b", "c", "-c", "-b", "-a"]


def test_empty_transactions_leave_no_trace() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    history.undo()
    with history.transaction("t"):
        pass
    assert history.names() == []
    assert history.redo() == "a"


def test_a_transaction_that_raises_is_undone() -> None:
    log: list[str] = []
    history = History()
    history.do(step(log, "a"))
    with pytest.raises(KeyError), history.transaction("t"):
        history.do(step(log, "b"))
        history.do(step(log, "c"))
        raise KeyError("x")
    assert log == ["a", "b", "c", "-c", "-b"]
    assert history.names() == ["a"]
    assert history.undo() == "a"


def test_an_inner_transaction_that_raises_is_undone_alone() -> None:
    log: list[str] = []
    history = History()
    with history.transaction("outer"):
        history.do(step(log, "a"))
        with pytest.raises(KeyError), history.transaction("inner"):
            history.do(step(log, "b"))
            raise KeyError("x")
    assert history.names() == ["outer"]
    history.undo()
    assert log == ["a", "b", "-b", "-a"]


def test_no_undo_inside_of_a_transaction() -> None:
    history = History()
    history.add(Edit("a", list, list))
    with pytest.raises(RuntimeError), history.transaction("t"):
        history.undo()
    with pytest.raises(RuntimeError), history.transaction("t"):
        history.redo()
    with pytest.raises(RuntimeError), history.transaction("t"):
        history.mark_saved()
    assert history.names() == ["a"]


def test_an_edit_that_raises_is_not_kept() -> None:
    history = History()
    with pytest.raises(ZeroDivisionError):
        history.do(Edit("a", lambda: 1 // 0, list))
    assert history.names() == []


def test_typed_characters_are_one_edit() -> None:
    text = TextBuffer()
    text.insert(0, "a")
    text.insert(1, "b")
    text.insert(2, "c")
    assert text.history.names() == ["insert"]
    text.history.undo()
    assert text.text == ""
    text.history.redo()
    assert text.text == "abc"


def test_a_blank_begins_a_new_edit() -> None:
    text = TextBuffer()
    for at, character in enumerate("ab cd"):
        text.insert(at, character)
    assert len(text.history.names()) == 2
    text.history.undo()
    assert text.text == "ab"


def test_typing_elsewhere_is_a_new_edit() -> None:
    text = TextBuffer("xy")
    text.insert(0, "a")
    text.insert(3, "b")
    text.insert(3, "c")
    assert len(text.history.names()) == 3
    text.history.undo()
    assert text.text == "axyb"


def test_pasted_text_is_an_edit_of_its_own() -> None:
    text = TextBuffer()
    text.insert(0, "ab")
    text.insert(2, "c")
    text.insert(3, "de")
    assert len(text.history.names()) == 3


def test_nothing_is_merged_after_undo_or_saving() -> None:
    text = TextBuffer()
    text.insert(0, "a")
    text.history.mark_saved()
    text.insert(1, "b")
    assert text.history.changed is True
    assert len(text.history.names()) == 2
    text.history.undo()
    assert text.history.changed is False
    text.insert(1, "c")
    assert len(text.history.names()) == 2
    assert text.text == "ac"


def test_nothing_is_merged_with_a_transaction() -> None:
    text = TextBuffer()
    with text.history.transaction("insert"):
        text.insert(0, "a")
    text.insert(1, "b")
    assert text.history.names() == ["insert", "insert"]
    text.history.seal()
    text.insert(2, "c")
    assert len(text.history.names()) == 3


def test_replace_is_one_edit() -> None:
    text = TextBuffer("a-b-c")
    assert text.replace("-", " - ") == 2
    assert text.text == "a - b - c"
    assert text.history.names() == ["replace"]
    text.history.undo()
    assert text.text == "a-b-c"
    text.history.redo()
    assert text.text == "a - b - c"


def test_replace_goes_from_left_to_right() -> None:
    text = TextBuffer("aaa")
    assert text.replace("aa", "a") == 1
    assert text.text == "aa"
    assert text.replace("a", "aa") == 2
    assert text.text == "aaaa"
    assert text.replace("a", "") == 4
    assert text.text == ""


def test_replace_nothing() -> None:
    text = TextBuffer("abc")
    assert text.replace("x", "y") == 0
    assert text.replace("b", "b") == 0
    assert text.history.names() == []
    with pytest.raises(ValueError):
        text.replace("", "x")


def test_positions_are_checked() -> None:
    text = TextBuffer("abc")
    with pytest.raises(IndexError):
        text.insert(4, "x")
    with pytest.raises(IndexError):
        text.insert(-1, "x")
    with pytest.raises(IndexError):
        text.delete(2, 1)
    with pytest.raises(IndexError):
        text.delete(0, 4)
    text.insert(3, "d")
    assert text.text == "abcd"
    assert text.delete(0, 4) == "abcd"


def test_edits_of_nothing_are_none() -> None:
    text = TextBuffer("abc")
    text.insert(1, "")
    assert text.delete(1, 1) == ""
    assert text.history.names() == []


def test_text_with_a_limit() -> None:
    text = TextBuffer("", limit=1)
    text.insert(0, "ab")
    text.insert(2, "cd")
    text.history.undo()
    assert text.history.undo() is None
    assert text.text == "ab"
