"""Servers on this machine are talked to directly, whatever proxy it has for the rest of the world."""

from __future__ import annotations

import os

_HERE = ("127.0.0.1", "localhost")


def past_proxies() -> None:
    """Tell HTTP libraries, here and in processes to come, that no proxy leads to this machine itself.

    With `HTTP_PROXY` alone they would ask the proxy for Prefect's server or vLLM's, which it does not know.
    """
    for name in ("NO_PROXY", "no_proxy"):
        listed = [each for each in os.environ.get(name, "").split(",") if each]
        os.environ[name] = ",".join([*listed, *(each for each in _HERE if each not in listed)])
