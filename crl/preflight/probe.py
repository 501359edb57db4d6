"""Whether models are computed here as transformers computes them, asked before work starts and remembered.

`crl.engine.probe` measures it, in a process of its own. A verdict is kept under `$CRL_MODELS/probes/`, named by the
digest of weights and tokenizer, what is done with them, this project's own code, and the versions of the libraries. One
that cannot be read is measured again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from crl.config import Method
from crl.errors import BadInput, CrlError, StageFailed
from crl.policies.sources import ModelSource, directory_digest, models_directory, resolve_model
from crl.preflight.shapes import config_file
from crl.run.files import write_atomically

_LOG = logging.getLogger(__name__)
_LIBRARIES = ("torch", "transformers", "peft", "safetensors", "numpy")
_CODE = ("config/attention.py", "engine/probe.py", "learn", "policies")
"""Files and folders of this package that the numbers follow from."""
_DRIVER = Path("/proc/driver/nvidia/version")

Verdict = Mapping[str, Any]
"""See `crl.engine.probe.Verdict`."""


@dataclass(frozen=True)
class _Asked:
    """A model, and what is done with it (`crl.engine.probe.Question`)."""

    source: ModelSource
    context: int
    lora: dict[str, Any] | None
    sampled: bool
    trained: bool

    @property
    def key(self) -> str:
        """What its verdict is kept by."""
        driver = _DRIVER.read_text() if _DRIVER.exists() else ""
        versions = [metadata.version(name) for name in _LIBRARIES]
        parts = [self.source.digest, self.context, self.lora, self.sampled, self.trained, _code(), versions, driver]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def question(self) -> dict[str, Any]:
        """As the probe reads it."""
        told = {"context": self.context, "lora": self.lora, "sampled": self.sampled, "trained": self.trained}
        return {"path": str(self.source.path), **told}


def is_known(method: Method, *, trains: bool = True) -> bool:
    """Whether a verdict on each of the models that are here is kept, so that nothing has to be measured."""
    return all(_read(_asked(method, owner, trains=trains).key) is not None for owner in _owners(method, here=True))


def probe_checks(method: Method, *, trains: bool = True, prepare: bool = True) -> list[tuple[str, Callable[[], None]]]:
    """Checks of the models, by the place in the config that names each; the first one asks about all.

    Args:
        method: whose models they are.
        trains: False where no weights are updated.
        prepare: whether models may be prepared or downloaded; without it those that are not here are not asked about.
    """
    owners = _owners(method, here=not prepare)

    @cache
    def found() -> dict[str, Verdict]:
        return dict(zip(owners, _verdicts([_asked(method, owner, trains=trains) for owner in owners]), strict=True))

    def check(owner: str) -> None:
        _refuse(found()[owner], method.role(owner).model, f"method.roles.{owner}.model")

    return [(f"method.roles.{owner}.model", partial(check, owner)) for owner in owners]


def check_computed(path: Path, name: str, context: int) -> None:
    """Raise BadInput where a model that is sampled from, and trained with full weights, is computed in another way."""
    asked = _Asked(ModelSource(path, name, directory_digest(path)), context, lora=None, sampled=True, trained=True)
    _refuse(_verdicts([asked])[0], name, "model")


def _owners(method: Method, *, here: bool) -> list[str]:
    """Sets of weights that are computed by this project; with `here`, those on this machine only."""
    owners = [owner for owner in method.owners() if not method.role(owner).engine.REMOTE]
    return [owner for owner in owners if not here or config_file(method.role(owner).model) is not None]


def _asked(method: Method, owner: str, *, trains: bool) -> _Asked:
    role = method.role(owner)
    trained = trains and owner in method.trained()
    lora = role.lora.model_dump(mode="json") if role.lora is not None and trained else None
    return _Asked(resolve_model(role.model), role.context, lora, sampled=not role.engine.SERVED, trained=trained)


def _refuse(verdict: Verdict, name: str, where: str) -> None:
    if verdict.get("skipped"):
        _LOG.warning("the model %s: %s", name, verdict["skipped"])
    if verdict.get("problem") is not None:
        raise BadInput(
            f"The model {name!r} cannot be used here: {verdict['problem']}",
            expected=verdict.get("expected") or "a model that is sampled and updated as transformers computes it",
            where=where,
            next_step="Use another model; `crl doctor EXPERIMENT` compares it before anything starts.",
        )


def _verdicts(asked: Sequence[_Asked]) -> list[Verdict]:
    """Of each; what is not kept is measured, equal questions once."""
    keys = [each.key for each in asked]
    known = {key: _read(key) for key in keys}
    open_ = {key: each.question for key, each in zip(keys, asked, strict=True) if known[key] is None}
    for key, verdict in zip(open_, _measured(list(open_.values())), strict=True):
        known[key] = verdict
        if not verdict.get("skipped") and not verdict.get("ended"):
            _keep(key, verdict)
    return [known[key] or {} for key in keys]


def _measured(questions: Sequence[dict[str, Any]]) -> list[Verdict]:
    """What a process of its own found; where a model ends it, another one goes on with the next."""
    if not questions:
        return []
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "verdicts", Path(folder) / "log"
        out.touch()
        # DeepSpeed, which transformers imports, would warn where there is no accelerator.
        environment = {**({} if _DRIVER.exists() else {"DS_ACCELERATOR": "cpu"}), **os.environ, "HF_HUB_OFFLINE": "1"}
        with log.open("wb") as stream:
            ended = subprocess.run(
                [sys.executable, "-m", "crl.engine.probe", str(out)],
                input=json.dumps(questions).encode(),
                stdout=stream,
                stderr=stream,
                env=environment,
                check=False,
            )
        found: list[Verdict] = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
        if ended.returncode > 0:
            raise StageFailed(
                f"models could not be compared with transformers: {_last_line(log)}",
                expected="an environment with torch, transformers and peft",
                next_step="`crl doctor` names what is missing",
            )
    if len(found) < len(questions):
        how = f"signal {-ended.returncode}; was memory not enough?"
        found.append({"problem": f"the process that compares it with transformers ended with {how}", "ended": True})
        found += _measured(questions[len(found) :])
    return found


def _last_line(log: Path) -> str:
    return next(reversed(log.read_text(errors="replace").strip().splitlines()), "it said nothing")


@cache
def _code() -> str:
    """The digest of this project's code that samples and updates."""
    root = Path(__file__).parents[1]
    named = [root / name for name in _CODE]
    files = sorted(file for path in named for file in ([path] if path.is_file() else path.rglob("*.py")))
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _place(key: str) -> Path:
    return models_directory() / "probes" / f"{key}.json"


def _read(key: str) -> Verdict | None:
    """The verdict that is kept; None where there is none, or not as it was written."""
    try:
        found = json.loads(_place(key).read_text(encoding="utf-8"))
        return found["verdict"] if found["digest"] == _digest(found["verdict"]) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(key: str, verdict: Verdict) -> None:
    """Keep a verdict where the place can be written; else it is measured again."""
    with suppress(OSError, CrlError):
        _place(key).parent.mkdir(parents=True, exist_ok=True)
        content = {"verdict": verdict, "digest": _digest(verdict)}
        write_atomically(_place(key), json.dumps(content, indent=1).encode())


def _digest(verdict: Verdict) -> str:
    return hashlib.sha256(json.dumps(verdict, sort_keys=True).encode()).hexdigest()
