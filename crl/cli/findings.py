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


def described_findings(method: Method, *, prepare: bool) -> Iterator[Finding]:
    """What each model is and where, and the chat template of each of its roles.

    Of a model on the Hub config and tokenizer are downloaded for it, no weights. With `prepare` models that are made on
    this machine are made, unless that takes long.
    """
    for owner in method.owners():
        model = method.role(owner).model
        if method.role(owner).engine.REMOTE:
            yield Finding(f"model, {owner}", f"{model}: its weights are elsewhere")
        elif not looked_at(model, prepare=prepare):
            yield Finding(f"model, {owner}", f"{model}: will be prepared on first use")
            continue
        elif (found := _model(model, f"model, {owner}")) is not None:
            yield found
            if not found.ok:
                continue
        else:
            continue
        for role in (name for name in method.uses() if method.owner(name) == owner):
            yield checked(f"template, {role}", partial(_chat, method, role), partial(_chat, method, role))


def _model(model: str, name: str) -> Finding | None:
    """None where there is no such model, which another check says."""
    from crl.policies.sources import check_model, described, pinned
    from crl.preflight.estimate import download_bytes, gigabytes
    from crl.preflight.shapes import readiness, shape_of

    try:
        check_model(model)
        state = readiness(model)
    except BadInput:
        return None
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


def looked_at(model: str, *, prepare: bool) -> bool:
    """Whether config and tokenizer of a model are here or on the Hub, or may be prepared."""
    from crl.policies.hub import HUB_ID
    from crl.policies.sources import check_model, takes_preparing, trained_weights
    from crl.preflight.shapes import config_file

    if takes_preparing(model):
        return False
    try:
        check_model(model)
        made = trained_weights(model) is not None or (config_file(model) is None and not HUB_ID.fullmatch(model))
    except BadInput:
        return True  # another check says what is wrong
    return prepare or not made


def _chat(method: Method, role: str) -> str:
    from crl.rounds.ready import chat_of

    chat = chat_of(method, role)
    which, _, turns = chat.template.partition("; ")
    if not method.uses()[role].multi_turn:
        return f"{which}; for one turn"
    if method.role(role).history != "strip_thoughts" and getattr(chat, "rewrites", False):
        return (
            f"{chat.template}. Where it is served by its own template, an earlier turn loses its thoughts. history: "
            "strip_thoughts trains that, and costs a sequence for each turn with a thought; as it is, thoughts cost "
            "room in the context"
        )
    return chat.template if turns else f"{which}; thoughts stay in the history"


def _history(method: Method, role: str, update: str) -> Iterator[Finding]:
    """What the sequences that a role's history begins cost an update."""
    from crl.config.roles import WindowHistory

    history = method.role(role).history
    if history == "append":
        return
    if history == "strip_thoughts":
        turns = max((family.turn_limit or 0 for family in method.families), default=0)
        begins = "each turn that follows a thought"
        times = f", up to {(turns + 1) / 2:g} times the tokens" if turns else ""
    else:
        begins = f"each {'window' if isinstance(history, WindowHistory) else 'summary'}"
        times = ", with what it keeps of the one before"
    cost = "in one tree, so what they share is computed once" if update.startswith("in packed") else f"alone{times}"
    yield Finding(f"history, {role}", f"{begins} begins a sequence; an update computes them {cost}")


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
        if updated := ways.get(method.owner(role), {}).get("update"):
            yield from _history(method, role, updated)
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
