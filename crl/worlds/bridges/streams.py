"""Python's and NumPy's global generators, one state per episode, for packages that draw from them.

Every episode has states of its own, which are in place while its game runs and taken back after: so what a game draws
depends on its seed alone, never on the games beside it. One game at a time may have them in place.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_IN_PLACE = threading.RLock()


class GlobalStreams:
    """The two global generators as one episode sees them."""

    def __init__(self, seed: int) -> None:
        """`seed` is a number from 0 on."""
        self._python: Any = random.Random(seed).getstate()
        self._numpy: Any = np.random.RandomState(np.random.MT19937(np.random.SeedSequence(seed))).get_state()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The episode's own states while the block runs; then those of before. Other episodes wait."""
        with _IN_PLACE:
            python, numpy = random.getstate(), np.random.get_state()
            random.setstate(self._python)
            np.random.set_state(self._numpy)
            try:
                yield
            finally:
                self._python, self._numpy = random.getstate(), np.random.get_state()
                random.setstate(python)
                np.random.set_state(numpy)


class Untouched:
    """Whether the global generators were drawn from since this was made."""

    def __init__(self) -> None:
        self._before = _states()

    def __bool__(self) -> bool:
        return self._before == _states()


def _states() -> tuple[Any, ...]:
    name, keys, *rest = np.random.get_state()
    return random.getstate(), name, np.asarray(keys).tobytes(), *rest
