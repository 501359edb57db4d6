"""A text whose changes can be undone."""

from undoing.history import Edit, History


class TextBuffer:
    """A text and its history. Positions are between characters, from 0 to the length."""

    def __init__(self, text: str = "", limit: int | None = None) -> None:
        self.text = text
        self.history = History(limit, _typed_on)

    def insert(self, at: int, piece: str) -> None:
        """Put a piece in; an empty one is no edit. Raises IndexError for a position outside of the text."""
        if not 0 <= at <= len(self.text):
            raise IndexError(f"no position {at} in {len(self.text)} characters")
        if piece:
            self._splice("insert", at, "", piece)

    def delete(self, start: int, stop: int) -> str:
        """Take the characters from `start` to before `stop` out; what they were."""
        if not 0 <= start <= stop <= len(self.text):
            raise IndexError(f"no span {start}, {stop} in {len(self.text)} characters")
        removed = self.text[start:stop]
        if removed:
            self._splice("delete", start, removed, "")
        return removed

    def replace(self, old: str, new: str) -> int:
        """Replace all of `old`, from left to right, as one edit; how many there were."""
        if not old:
            raise ValueError("nothing to replace")
        count, at = 0, self.text.find(old)
        if at < 0 or old == new:
            return 0
        with self.history.transaction("replace"):
            while at >= 0:
                self._splice("replace", at, old, new)
                count += 1
                at = self.text.find(old, at + len(new))
        return count

    def _splice(self, name: str, at: int, old: str, new: str) -> None:
        def redo() -> None:
            self.text = self.text[:at] + new + self.text[at + len(old) :]

        def undo() -> None:
            self.text = self.text[:at] + old + self.text[at + len(new) :]

        self.history.do(Edit(name, redo, undo, {"at": at, "new": new}))


def _typed_on(last: Edit, new: Edit) -> Edit | None:
    """One edit for two insertions of which the second is a character right behind the first; a blank begins anew."""
    if last.name != "insert" or new.name != "insert":
        return None
    piece, typed = last.data["new"], new.data["new"]
    if len(typed) != 1 or typed.isspace() or last.data.get("pasted", len(piece) > 1):
        return None
    if new.data["at"] != last.data["at"] + len(piece):
        return None

    def redo() -> None:
        last.redo()
        new.redo()

    def undo() -> None:
        new.undo()
        last.undo()

    return Edit("insert", redo, undo, {"at": last.data["at"], "new": piece + typed, "pasted": False})
