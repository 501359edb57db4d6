"""What a NetHack game showed last.

NLE plays a game that is won, lost or over to its very end within one step: it confirms what the game still says, quits,
and leaves empty buffers. This watches the keys that it presses, so that the last map and all messages of the last
action are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from crl.envs.nethack_screen import Screen

_CONFIRM = ord(" ")
"""The key that goes on after a message with `--More--`."""


class LastScreen:
    """Keeps the last screen of an instance's turn; `read` copies the one that its buffers hold."""

    def __init__(self, env: Any, read: Callable[[Any], Screen]) -> None:
        self._env, self._read, self._press = env, read, env.nethack.step
        self._screen: Screen | None = None
        self._messages: list[str] = []
        self._acted, self._watching = False, False
        env.nethack.step = self._watched

    def begin(self) -> None:
        """Forget the turn before; called ahead of every action."""
        self._screen, self._messages, self._acted, self._watching = None, [], False, True

    def screen(self) -> Screen | None:
        """The map as the last message of the turn found it, with all messages of the turn; None if the game ended
        without a further key, so that nothing is left."""
        return None if self._screen is None else replace(self._screen, message=" ".join(self._messages))

    def _watched(self, key: int) -> Any:
        if self._watching and self._acted:
            self._keep(goes_on=key == _CONFIRM)
        self._acted = True
        return self._press(key)

    def _keep(self, *, goes_on: bool) -> None:
        """Look at the screen that a further key is about to replace; after the messages of the action come menus."""
        screen = self._read(self._env)
        if screen.message or not goes_on:
            self._screen = screen
        if screen.message:
            self._messages.append(screen.message)
        self._watching = goes_on and bool(screen.message)
