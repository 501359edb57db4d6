"""Findings of `crl doctor`, and those on the models of an experiment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from crl.errors import BadInput, CrlError, HubUnreachable

if TYPE_CHECKING:
    from crl.config import Experiment, Method
    from crl.preflight.estimate import Estimate
    from crl.preflight.probe import Comparison


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: what was looked at, what was found, what to do where it is missing."""

    name: str
    result: str
    ok: bool = True
    mend: str = ""
    required: bool = True
    """Whether training cannot do without it."""
    fits: bool = True
    """False where this machine is too small by an estimate, which is made for the longest sequences."""

    @property
    def mark(self) -> str:
        """The first word of its line."""
        return "ok" if self.ok else "too big" if not self.fits else "missing" if self.required else "–"


def checked(name: str, check: Callable[[], object], result: str | Callable[[], str] = "ready") -> Finding:
    """A check as a finding: `result` where it passes, else its error."""
    try:
        check()
        return Finding(name, result if isinstance(result, str) else result())
    except CrlError as error:
        return Finding(name, error.found, False, error.next_step or "")


def described_findings(method: Method) -> Iterator[Finding]:
    """What each model is and where, and the chat template of each of its roles.

    Of a model on the Hub config and tokenizer are downloaded for it, no weights.
    """
    for owner in method.owners():
        found = _model(method, owner)
        yield from [] if found is None else [found]
        if found is None or not found.ok or prepared_later(method, owner):
            continue
        for role in (name for name in method.recipe.roles() if method.owner(name) == owner):
            yield checked(f"template, {role}", partial(_chat, method, role), partial(_chat, method, role))


def _model(method: Method, owner: str) -> Finding | None:
    """None where the name of a model is wrong, which is a check of its own."""
    from crl.policies.sources import check_model, described, pinned
    from crl.preflight.estimate import download_bytes, gigabytes
    from crl.preflight.shapes import readiness, shape_of

    model, name = method.role(owner).model, f"model, {owner}"
    if method.role(owner).engine.REMOTE:
        return Finding(name, f"{model}: its weights are elsewhere")
    try:
        check_model(model)
        state = readiness(model)
    except BadInput:
        return None
    if prepared_later(method, owner):
        return Finding(name, f"{model}: {state}")
    try:
        path = described(model)
    except HubUnreachable as error:
        told = f"{model}: {state}; the Hub does not answer now, so its config was not looked at"
        return Finding(name, told, False, error.next_step or "", required=False)
    except CrlError as error:
        return Finding(name, error.found, False, error.next_step or "")
    parts = [pinned(model, path)]
    if (shape := shape_of(model)) is not None:
        many = f"{shape.parameters / 1e9:.1f} B" if shape.parameters >= 1e9 else f"{shape.parameters / 1e6:.1f} M"
        parts.append(f"{many} parameters, {shape.size} bytes each")
    if state != "ready":
        size = download_bytes(model)
        parts.append("to download" if size is None else f"{gigabytes(size)} to download")
    return Finding(name, ", ".join(parts))


def prepared_later(method: Method, owner: str) -> bool:
    """Whether preparing a model takes so long that nothing is looked at before its first use."""
    from crl.policies.sources import takes_preparing

    return takes_preparing(method.role(owner).model)


def _chat(method: Method, role: str) -> str:
    from crl.rounds.ready import chat_of

    template = chat_of(method, role).template
    return template + ("; thoughts stay in the history" if method.recipe.roles()[role].multi_turn else "; for one turn")


def computed_findings(experiment: Experiment, needed: Estimate, compared: Comparison) -> Iterator[Finding]:
    """In which way each role samples and each set of weights is updated, and what that holds in memory."""
    from crl.cli.needs import sizes
    from crl.preflight.estimate import gigabytes
    from crl.preflight.memory import parts_of

    method = experiment.method
    ways: dict[str, dict[str, str]] = {}
    for name, check in compared.checks(prepare=False):
        owner = name.split(".")[2]
        found = checked(name, check)
        ways[owner] = compared.ways(owner) if found.ok else {}
        yield from [] if found.ok else [found]
    for role, sampling in needed.sampling.items():
        engine = method.role(role).engine
        how = f"by {engine.kind}" if engine.SERVED else _way(ways, method.owner(role), "sampling")
        yield Finding(f"sampling, {role}", f"{how}: {sizes(parts_of(sampling))}")
    for owner, update in needed.updates.items():
        ranks = method.role(owner).deepspeed.ranks
        more = "" if ranks == 1 else f" on each of {ranks} ranks"
        yield Finding(f"update, {owner}", f"{_way(ways, owner, 'update')}: {sizes(parts_of(update))}{more}")
        if adapter := ways.get(owner, {}).get("adapter"):
            yield Finding(f"adapter, {owner}", adapter)
    for base, size in needed.bases.items():
        standing = " and ".join(owner for owner in method.owners() if method.base(owner) == base)
        yield Finding(f"base, {base}", f"{gigabytes(size)} in each engine, once for {standing}")


def _way(ways: dict[str, dict[str, str]], owner: str, what: str) -> str:
    return ways.get(owner, {}).get(what) or "not compared with transformers yet"
