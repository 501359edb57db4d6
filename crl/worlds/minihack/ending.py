"""What a NetHack game showed last, and an end to tasks that press keys without one.

NLE plays a game that is won, lost or over to its very end within one step: it confirms what the game still says, quits,
and leaves empty buffers. This watches the keys that it presses, so that the last map and all messages of the last
action are kept. Some tasks press further keys themselves until something has happened (a key room walks into its door
until that is open), which it may never do: then the action is given up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crl.worlds.minihack.screen import Screen

_CONFIRM = ord(" ")
"""The key that goes on after a message with `--More--`."""
_MOST_KEYS = 1000
"""Keys of one action; what a task does in one takes some dozens."""


class KeysWithoutEnd(RuntimeError):
    """A task presses key after key within one action and does not come to an end."""


class LastScreen:
    """Keeps the last screen of an instance's turn; `read` copies the one that its buffers hold."""

    def __init__(self, env: Any, read: Callable[[Any], Screen]) -> None:
        # NLE frees an instance once nothing but its finalizer, which holds `env.nethack`, knows of it.
        self._env, self._read, self._press = weakref.ref(env), read, env.nethack.step
        self._screen: Screen | None = None
        self._messages: list[str] = []
        self._acted, self._watching = False, False
        self._keys_left: int | None = None
        env.nethack.step = self._watched

    def begin(self) -> None:
        """Forget the turn before; called ahead of every action."""
        self._screen, self._messages, self._acted, self._watching = None, [], False, True
        self._keys_left = _MOST_KEYS

    def rest(self) -> None:
        """Watch and count nothing until the next action; called ahead of a new game."""
        self._watching, self._keys_left = False, None

    def screen(self) -> Screen | None:
        """The map as the last message of the turn found it, with all messages of the turn; None if the game ended
        without a further key, so that nothing is left."""
        return None if self._screen is None else replace(self._screen, message=" ".join(self._messages))

    def _watched(self, key: int) -> Any:
        if self._keys_left is not None:
            self._keys_left -= 1
            if self._keys_left < 0:
                raise KeysWithoutEnd(f"the task pressed more than {_MOST_KEYS} keys in one action")
        if self._watching and self._acted:
            self._keep(goes_on=key == _CONFIRM)
        self._acted = True
        return self._press(key)

    def _keep(self, *, goes_on: bool) -> None:
        """Look at the screen that a further key is about to replace; after the messages of the action come menus."""
        screen = self._read(self._env())
        if screen.message or not goes_on:
            self._screen = screen
        if screen.message:
            self._messages.append(screen.message)
        self._watching = goes_on and bool(screen.message)
