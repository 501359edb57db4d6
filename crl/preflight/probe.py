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
from crl.paths import models_directory
from crl.policies.sources import ModelSource, directory_digest, resolve_model
from crl.preflight.shapes import config_file
from crl.run.files import write_atomically
from crl.run.guardian import PARENT

_LOG = logging.getLogger(__name__)
_LIBRARIES = ("torch", "transformers", "peft", "safetensors", "numpy")
_CODE = ("config/models.py", "config/vocabulary.py", "engine/probe.py", "learn", "policies")
"""Files and folders of this package that the numbers follow from."""
_DRIVER = Path("/proc/driver/nvidia/version")
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Beside other work, threads that wait for each other awake take ten times as long."""

Say = Callable[[str], None]
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
    autocast: str = "none"
    gradient_checkpointing: bool = False

    @property
    def key(self) -> str:
        """What its verdict is kept by."""
        driver = _DRIVER.read_text() if _DRIVER.exists() else ""
        versions = [metadata.version(name) for name in _LIBRARIES]
        asked = {**self.question, "path": self.source.digest}
        parts = [asked, _code(), versions, driver]
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()

    @property
    def question(self) -> dict[str, Any]:
        """As the probe reads it."""
        told = {name: value for name, value in vars(self).items() if name != "source"}
        return {"path": str(self.source.path), **told}


class Comparison:
    """The models of a method, compared with transformers. Inside, a process measures those that are on this machine and
    have no verdict yet, beside whatever else is checked; :meth:`checks` waits for it."""

    def __init__(self, method: Method, *, trains: bool = True, say: Say | None = None) -> None:
        """`trains` False: no weights are updated. `say` is called with a line for a person where it takes time."""
        self._method, self._trains, self._say = method, trains, say
        self._measuring: _Measuring | None = None

    def __enter__(self) -> Comparison:
        with suppress(CrlError, OSError, RuntimeError, ValueError):  # other checks say better what is wrong
            asked = [_asked(self._method, owner, trains=self._trains) for owner in self._owners(here=True)]
            unknown = [each for each in asked if _read(each.key) is None]
            self._measuring = _Measuring(unknown) if unknown else None
        return self

    def __exit__(self, *error: object) -> None:
        if self._measuring is not None:
            self._measuring.stop()

    def checks(self, *, prepare: bool = True) -> list[tuple[str, Callable[[], None]]]:
        """Checks by the place in the config that names a model. With `prepare` models are prepared or downloaded;
        without it those that are not here are not asked about."""
        owners = self._owners(here=not prepare)

        @cache
        def found() -> dict[str, Verdict]:
            if self._measuring is not None:
                if self._say is not None:
                    self._say("comparing the models with transformers (once; seconds, longer for a large model)")
                self._measuring.keep()
            asked = [_asked(self._method, owner, trains=self._trains) for owner in owners]
            return dict(zip(owners, _verdicts(asked), strict=True))

        def check(owner: str) -> None:
            _refuse(found()[owner], self._method.role(owner).model, f"method.roles.{owner}.model")

        return [(f"method.roles.{owner}.model", partial(check, owner)) for owner in owners]

    def _owners(self, *, here: bool) -> list[str]:
        """Sets of weights that this project computes; with `here`, those on this machine only."""
        roles = {owner: self._method.role(owner) for owner in self._method.owners()}
        trained = self._method.trained() if self._trains else ()
        ours = {name: role for name, role in roles.items() if not role.engine.REMOTE}
        owners = [name for name, role in ours.items() if not role.engine.SERVED or name in trained]
        return [owner for owner in owners if not here or config_file(self._method.role(owner).model) is not None]


def check_computed(path: Path, name: str, context: int) -> None:
    """Raise BadInput where a model that is sampled from, and trained with full weights, is computed in another way."""
    asked = _Asked(ModelSource(path, name, directory_digest(path)), context, lora=None, sampled=True, trained=True)
    _refuse(_verdicts([asked])[0], name, "model")


def _asked(method: Method, owner: str, *, trains: bool) -> _Asked:
    from crl.policies.machine import computed

    role = method.role(owner)
    source, sampled = resolve_model(role.model), not role.engine.SERVED
    if not (trains and owner in method.trained()):
        return _Asked(source, role.context, None, sampled, trained=False)
    settings = computed(role).deepspeed
    return _Asked(
        source,
        role.context,
        None if role.lora is None else role.lora.model_dump(mode="json"),
        sampled,
        trained=True,
        autocast=settings.autocast,
        gradient_checkpointing=settings.gradient_checkpointing,
    )


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
    """Of each; what is not kept is measured."""
    known = {each.key: _read(each.key) for each in asked}
    unknown = [each for each in asked if known[each.key] is None]
    if unknown:
        measuring = _Measuring(unknown)
        try:
            known |= measuring.keep()
        finally:
            measuring.stop()
    return [known[each.key] or {} for each in asked]


class _Measuring:
    """A process that compares models, equal ones once."""

    def __init__(self, asked: Sequence[_Asked]) -> None:
        self._asked = {each.key: each for each in asked}
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._log = (Path(self._folder.name) / name for name in ("verdicts", "log"))
        self._out.touch()
        questions = Path(self._folder.name) / "questions"
        questions.write_text(json.dumps([each.question for each in self._asked.values()]), encoding="utf-8")
        # DeepSpeed, which transformers imports, would warn where there is no accelerator.
        accelerator = {} if _DRIVER.exists() else {"DS_ACCELERATOR": "cpu"}
        environment = {**accelerator, **_PASSIVE, **os.environ, PARENT: str(os.getpid())}
        with questions.open("rb") as told, self._log.open("wb") as log:
            command = [sys.executable, "-m", "crl.engine.probe", str(self._out)]
            self._process = subprocess.Popen(command, stdin=told, stdout=log, stderr=log, env=environment)

    def keep(self) -> dict[str, Verdict]:
        """Wait for the verdicts, by key, and keep them. Where a model ends the process another one goes on."""
        self._process.wait()
        lines = self._out.read_text(encoding="utf-8").splitlines()
        found: dict[str, Verdict] = dict(zip(self._asked, map(json.loads, lines), strict=False))
        for key, verdict in found.items():
            if verdict.get("sure"):
                _keep(key, verdict)
        if self._process.returncode > 0:
            raise StageFailed(
                f"models could not be compared with transformers: {_last_line(self._log)}",
                expected="an environment with torch, transformers and peft",
                next_step="`crl doctor` names what is missing",
            )
        left = [each for key, each in self._asked.items() if key not in found]
        if left:
            how = f"signal {-self._process.returncode}; was memory not enough?"
            found[left[0].key] = {"problem": f"the process that compares it with transformers ended with {how}"}
            found |= dict(zip((each.key for each in left[1:]), _verdicts(left[1:]), strict=True))
        return found

    def stop(self) -> None:
        """End the process, where it still runs."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


def _last_line(log: Path) -> str:
    return next(reversed(log.read_text(errors="replace").strip().splitlines()), "it said nothing")


@cache
def _code() -> str:
    """The digest of this project's code that samples and updates."""
    root = Path(__file__).parents[1]
    named = [root / name for name in _CODE]
    files = sorted(file for path in named for file in ([path] if path.suffix else path.rglob("*.py")))
    return hashlib.sha256(b"".join(hashlib.sha256(file.read_bytes()).digest() for file in files)).hexdigest()


def _place(key: str) -> Path:
    return models_directory() / "probes" / f"{key}.json"


def _read(key: str) -> Verdict | None:
    """The verdict that is kept; None where there is none, or not as it was written."""
    try:
        found = json.loads(_place(key).read_text(encoding="utf-8"))
        return found["verdict"] if found["digest"] == _digest(found["verdict"]) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _keep(key: str, verdict: Verdict) -> None:
    """Keep a verdict where the place can be written; else it is measured again."""
    with suppress(OSError, CrlError):
        _place(key).parent.mkdir(parents=True, exist_ok=True)
        content = {"verdict": verdict, "digest": _digest(verdict)}
        write_atomically(_place(key), json.dumps(content, indent=1).encode())


def _digest(verdict: Verdict) -> str:
    return hashlib.sha256(json.dumps(verdict, sort_keys=True).encode()).hexdigest()
