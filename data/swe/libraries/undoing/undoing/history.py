"""Edits in order, and where in them we are."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Edit:
    """Something that was done: `redo` does it again, `undo` takes it back. `data` is for those who merge edits."""

    name: str
    redo: Callable[[], Any]
    undo: Callable[[], Any]
    data: dict[str, Any] = field(default_factory=dict)


class History:
    """The last `limit` edits (None: all). `merge(last, new)` may return one edit that stands for both, or None."""

    def __init__(self, limit: int | None = None, merge: Callable[[Edit, Edit], Edit | None] | None = None) -> None:
        if limit is not None and limit < 1:
            raise ValueError("limit must be at least 1")
        self._limit = limit
        self._merge = merge
        self._done: list[Edit] = []
        self._undone: list[Edit] = []
        self._open: list[list[Edit]] = []
        self._saved: int | None = 0
        self._sealed = False

    def do(self, edit: Edit) -> Any:
        """Do an edit and keep it; what it returns."""
        result = edit.redo()
        self.add(edit)
        return result

    def add(self, edit: Edit) -> None:
        """Keep an edit that is done already."""
        if self._open:
            self._open[-1].append(edit)
            return
        if self._saved is not None and self._saved > len(self._done):
            self._saved = None
        self._undone.clear()
        if not self._merged(edit):
            self._done.append(edit)
            self._forget_old()
        self._sealed = False

    def undo(self) -> str | None:
        """Take the last edit back; its name, or None if there is none."""
        self._closed()
        if not self._done:
            return None
        edit = self._done.pop()
        edit.undo()
        self._undone.append(edit)
        self._sealed = True
        return edit.name

    def redo(self) -> str | None:
        """Do again what was undone last; its name, or None if there is none."""
        self._closed()
        if not self._undone:
            return None
        edit = self._undone.pop()
        edit.redo()
        self._done.append(edit)
        self._sealed = True
        return edit.name

    @contextmanager
    def transaction(self, name: str) -> Iterator[None]:
        """What is done in the block is one edit. If the block raises, it is undone and the exception passes on."""
        edits: list[Edit] = []
        self._open.append(edits)
        try:
            yield
        except BaseException:
            self._open.pop()
            for edit in reversed(edits):
                edit.undo()
            raise
        self._open.pop()
        if edits:
            self.seal()
            self.add(_joined(name, edits))
            self.seal()

    def seal(self) -> None:
        """The next edit is not merged with the last one."""
        self._sealed = True

    def mark_saved(self) -> None:
        """What there is now is saved."""
        self._closed()
        self._saved = len(self._done)
        self._sealed = True

    @property
    def changed(self) -> bool:
        """Whether what there is now differs from what was saved: undoing back to there makes it False again."""
        return self._saved != len(self._done)

    def names(self) -> list[str]:
        """Names of what can be undone, the oldest first."""
        return [edit.name for edit in self._done]

    def undone_names(self) -> list[str]:
        """Names of what can be done again, the next one first."""
        return [edit.name for edit in reversed(self._undone)]

    def _merged(self, edit: Edit) -> bool:
        if self._merge is None or self._sealed or not self._done:
            return False
        both = self._merge(self._done[-1], edit)
        if both is None:
            return False
        self._done[-1] = both
        return True

    def _forget_old(self) -> None:
        if self._limit is None or len(self._done) <= self._limit:
            return
        excess = len(self._done) - self._limit
        del self._done[:excess]
        if self._saved is not None:
            self._saved = self._saved - excess if self._saved >= excess else None

    def _closed(self) -> None:
        if self._open:
            raise RuntimeError("a transaction is open")


def _joined(name: str, edits: list[Edit]) -> Edit:
    def redo() -> None:
        for edit in edits:
            edit.redo()

    def undo() -> None:
        for edit in reversed(edits):
            edit.undo()

    return Edit(name, redo, undo)
