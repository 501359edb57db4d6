"""Whether a model or an embedder is on this machine already, or what its first use does about that."""

from __future__ import annotations

from crl.policies.sources import HUB_ID, is_path, takes_preparing
from crl.preflight.shapes import config_file


def readiness(name: str) -> str:
    """In words, of a name that was checked; nothing is loaded, prepared or downloaded.

    A Hugging Face id that was downloaded in part counts as missing: the download goes on where it stopped.
    """
    if takes_preparing(name):
        return "will be prepared on first use"
    if is_path(name) or not HUB_ID.fullmatch(name):
        return "ready"
    config = config_file(name)
    if config is not None and any(config.parent.glob("*.safetensors")):
        return "ready"
    return "not on this machine: will be downloaded from Hugging Face on first use"
