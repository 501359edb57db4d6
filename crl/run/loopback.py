"""Servers on this machine are talked to directly, whatever proxy it has for the rest of the world."""

from __future__ import annotations

import os

_HERE = ("127.0.0.1", "localhost")
_NAMES = ("NO_PROXY", "no_proxy")


def past_proxies() -> None:
    """Tell HTTP libraries, here and in processes to come, that no proxy leads to this machine itself.

    With `HTTP_PROXY` alone they would ask the proxy for Prefect's server or vLLM's, which it does not know.
    """
    given = ",".join(os.environ.get(name, "") for name in _NAMES)
    listed = dict.fromkeys(each for part in given.split(",") if (each := part.strip()))
    # Libraries prefer one spelling or the other, and some know "*" only alone.
    value = "*" if "*" in listed else ",".join(dict.fromkeys([*listed, *_HERE]))
    os.environ.update(dict.fromkeys(_NAMES, value))
