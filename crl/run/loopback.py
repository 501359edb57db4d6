"""What stays on this machine: servers here are asked past every proxy, and processes here meet on loopback."""

from __future__ import annotations

import os
import sys

STORE_VARIABLE = "CRL_RANKS_STORE"
"""Names the file in which ranks on one machine meet."""
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


def on_loopback() -> dict[str, str]:
    """Variables with which gloo and NCCL listen on loopback, also where the machine's own name them a network."""
    return dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo" if sys.platform == "linux" else "lo0")
