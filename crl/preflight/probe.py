"""Whether models are computed here as transformers computes them, asked before work starts and remembered.

`crl.engine.probe` measures it, in a process of its own; `crl.policies.verdicts` keeps what it found.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

from crl.config import Method
from crl.errors import BadInput, CrlError, StageFailed
from crl.policies.sources import ModelSource, directory_digest
from crl.policies.verdicts import DRIVER, Asked, Verdict, adapter_in_words, asked_of, computed_here, keep, read
from crl.preflight.shapes import config_file, readiness
from crl.run.guardian import PARENT

_LOG = logging.getLogger(__name__)
_PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Beside other work, threads that wait for each other awake take ten times as long."""

_IN_WORDS = {
    "packed": "in packed passes",
    "padded": "in padded batches",
    "rows": "row by row",
    "tokens": "token by token",
    "reread": "without a cache, each token from the whole row",
}
"""The ways of sampling and of updating."""

Say = Callable[[str], None]


class Comparison:
    """The models of a method, compared with transformers. Inside, a process measures those that are on this machine and
    have no verdict yet, beside whatever else is checked; :meth:`checks` waits for it."""

    def __init__(self, method: Method, *, trains: bool = True, say: Say | None = None) -> None:
        """`trains` False: no weights are updated. `say` is called with a line for a person where it takes time."""
        self._method, self._trains, self._say = method, trains, say
        self._measuring: _Measuring | None = None
        self._found: Callable[[], dict[str, Verdict]] = dict

    def __enter__(self) -> Comparison:
        with suppress(CrlError, OSError, RuntimeError, ValueError):  # other checks say better what is wrong
            asked = [asked_of(self._method, owner, trains=self._trains) for owner in self._owners(here=True)]
            unknown = [each for each in asked if read(each.key) is None]
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
            asked = [asked_of(self._method, owner, trains=self._trains) for owner in owners]
            return dict(zip(owners, _verdicts(asked), strict=True))

        def check(owner: str) -> None:
            _refuse(found()[owner], self._method.role(owner).model, f"method.roles.{owner}.model")

        self._found = found
        return [(f"method.roles.{owner}.model", partial(check, owner)) for owner in owners]

    def ways(self, owner: str) -> dict[str, str]:
        """How a model that has passed its check is sampled from and updated, for a person; why not in a faster way."""
        verdict = self._found()[owner]
        if (skipped := verdict.get("skipped")) is not None:
            return {"sampling": str(skipped), "update": str(skipped)}
        instead = verdict.get("instead", {})
        adapter = {"adapter": adapter_in_words(verdict["adapter"])} if verdict.get("adapter") else {}
        return adapter | {
            what: _IN_WORDS[verdict[what]] + (f" (not {instead[what]})" if what in instead else "")
            for what in ("sampling", "update")
            if verdict.get(what)
        }

    def _owners(self, *, here: bool) -> list[str]:
        """Sets of weights that this project computes; with `here`, those on this machine only."""
        owners = computed_here(self._method, trains=self._trains)
        models = {owner: self._method.role(owner).model for owner in owners}
        return [owner for owner, model in models.items() if not here or _is_here(model)]


def _is_here(model: str) -> bool:
    """Whether a model can be loaded without preparing or downloading it."""
    return config_file(model) is not None and readiness(model) == "ready"


def check_computed(path: Path, name: str, context: int) -> None:
    """Raise BadInput where a model that is sampled from, and trained with full weights, is computed in another way."""
    asked = Asked(ModelSource(path, name, directory_digest(path)), context, lora=None, sampled=True, trained=True)
    _refuse(_verdicts([asked])[0], name, "model")


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


def _verdicts(asked: Sequence[Asked]) -> list[Verdict]:
    """Of each; what is not kept is measured."""
    known = {each.key: read(each.key) for each in asked}
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

    def __init__(self, asked: Sequence[Asked]) -> None:
        self._asked = {each.key: each for each in asked}
        self._folder = tempfile.TemporaryDirectory()
        self._out, self._log = (Path(self._folder.name) / name for name in ("verdicts", "log"))
        self._out.touch()
        questions = Path(self._folder.name) / "questions"
        questions.write_text(json.dumps([each.question for each in self._asked.values()]), encoding="utf-8")
        # DeepSpeed, which transformers imports, would warn where there is no accelerator.
        accelerator = {} if DRIVER.exists() else {"DS_ACCELERATOR": "cpu"}
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
                keep(key, verdict)
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
