"""Verdicts of the probe (`crl.engine.probe`), kept on this machine: whether a model is computed right, and how.

They are kept under `$CRL_MODELS/probes/`, named by the digest of weights and tokenizer, what is done with them, this
project's own code, and the versions of the libraries. One that cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from crl.config import Method
from crl.config.models import Ways
from crl.errors import CrlError
from crl.paths import models_directory
from crl.policies.sources import ModelSource, resolve_model
from crl.run.files import write_atomically

_LIBRARIES = ("torch", "transformers", "peft", "safetensors", "numpy")
_CODE = ("config/models.py", "config/vocabulary.py", "config/ways.py", "engine/probe.py", "learn", "policies")
"""Files and folders of this package that the numbers follow from."""
_MOST_NAMED = 6
"""Frozen weights that are named."""
DRIVER = Path("/proc/driver/nvidia/version")

Verdict = Mapping[str, Any]
"""See `crl.engine.probe.Verdict`."""


@dataclass(frozen=True)
class Asked:
    """A model, and what is done with it (`crl.engine.probe.Question`)."""

    source: ModelSource
    context: int
    lora: dict[str, Any] | None
    sampled: bool
    trained: bool
    autocast: str = "none"
    gradient_checkpointing: bool = False

    @property
    def key(self) -> str:
        """What its verdict is kept by."""
        driver = DRIVER.read_text() if DRIVER.exists() else ""
        versions = [metadata.version(name) for name in _LIBRARIES]
        asked = {**self.question, "path": self.source.digest}
        parts = [asked, _code(), versions, driver]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def question(self) -> dict[str, Any]:
        """As the probe reads it."""
        told = {name: value for name, value in vars(self).items() if name != "source"}
        return {"path": str(self.source.path), **told}


def asked_of(method: Method, owner: str, *, trains: bool) -> Asked:
    """What is asked about a set of weights; without `trains` none is updated."""
    return Asked(resolve_model(method.role(owner).model), **use_of(method, owner, trains=trains))


def use_of(method: Method, owner: str, *, trains: bool = True) -> dict[str, Any]:
    """What is done with a set of weights."""
    from crl.policies.machine import computed

    role = method.role(owner)
    sharing = {name: each for name, each in method.roles.items() if method.owner(name) == owner}
    use: dict[str, Any] = {
        "context": max([role.context, *(each.context for each in sharing.values())]),
        "sampled": not role.engine.SERVED,
    }
    if not (trains and owner in method.trained()):
        return use | {"lora": None, "trained": False}
    settings = computed(role).deepspeed
    return use | {
        "lora": None if role.lora is None else role.lora.model_dump(mode="json"),
        "trained": True,
        "autocast": settings.autocast,
        "gradient_checkpointing": settings.gradient_checkpointing,
    }


def kept_ways(method: Method, owners: Iterable[str]) -> dict[str, Ways]:
    """The ways of each of these sets of weights that has a verdict, for a run that trains."""
    found = {}
    for owner in owners:
        verdict = read(asked_of(method, owner, trains=True).key) or {}
        if verdict and not verdict.get("problem"):
            found[owner] = Ways(verdict["sampling"], verdict["update"], verdict.get("adapter"))
    return found


def adapter_in_words(adapter: Mapping[str, Any]) -> str:
    """What an adapter adapts (`crl.learn.adapters.Adapted`), for a person."""
    of = adapter["of"]
    shares = [f"{name.removesuffix('.weight')} {size / of:.0%}" for name, size in adapter["frozen"].items()]
    large = [each for each, size in zip(shares, adapter["frozen"].values(), strict=True) if size >= of / 100]
    told = [f"on {adapter['weights'] / of:.0%} of the weights"]
    told += [f"frozen: {', '.join(large[:_MOST_NAMED])}{', …' * (len(large) > _MOST_NAMED)}"] if large else []
    told += [f"no gradient reaches {', '.join(adapter['idle'][:_MOST_NAMED])}"] if adapter["idle"] else []
    return "; ".join(told)


def computed_here(method: Method, *, trains: bool = True) -> list[str]:
    """Sets of weights that this project computes, by their owners."""
    roles = {owner: method.role(owner) for owner in method.owners()}
    trained = method.trained() if trains else ()
    ours = {name: role for name, role in roles.items() if not role.engine.REMOTE}
    return [name for name, role in ours.items() if not role.engine.SERVED or name in trained]


@cache
def _code() -> str:
    """The digest of this project's code that samples and updates."""
    root = Path(__file__).parents[1]
    named = [root / name for name in _CODE]
    files = sorted(file for path in named for file in ([path] if path.suffix else path.rglob("*.py")))
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _place(key: str) -> Path:
    return models_directory() / "probes" / f"{key}.json"


def read(key: str) -> Verdict | None:
    """The verdict that is kept; None where there is none, or not as it was written."""
    try:
        found = json.loads(_place(key).read_text(encoding="utf-8"))
        return found["verdict"] if found["digest"] == _digest(found["verdict"]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def keep(key: str, verdict: Verdict) -> None:
    """Keep a verdict where the place can be written; else it is measured again."""
    with suppress(OSError, CrlError):
        _place(key).parent.mkdir(parents=True, exist_ok=True)
        content = {"verdict": verdict, "digest": _digest(verdict)}
        write_atomically(_place(key), json.dumps(content, indent=1).encode())


def _digest(verdict: Verdict) -> str:
    return hashlib.sha256(json.dumps(verdict, sort_keys=True).encode()).hexdigest()
