"""Which environments there are, and whether each can be played here."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from crl.config import ENVIRONMENTS
from crl.errors import BadInput, CrlError

_NEEDS_SETTINGS = "needs settings: "


@dataclass(frozen=True, slots=True)
class Listed:
    """One environment."""

    kind: str
    about: str
    """The first sentence of its config class."""
    missing: str | None
    """Why it cannot be played here as it comes; None where it can."""
    next_step: str | None = None

    @property
    def playable(self) -> str:
        """In words."""
        if self.missing is None:
            return "yes"
        if self.missing.startswith(_NEEDS_SETTINGS):
            return self.missing
        return f"no: {self.missing}" + (f"; {self.next_step}" if self.next_step else "")

    def as_data(self) -> dict[str, Any]:
        """For programs."""
        return {
            "kind": self.kind, "about": self.about, "playable": self.missing is None, "missing": self.missing,
            "next_step": self.next_step,
        }  # fmt: skip


def environments() -> list[Listed]:
    """Every registered environment, the built-in ones first; each is made once, with the settings it comes with."""
    return [_listed(kind) for kind in ENVIRONMENTS.names()]


def _listed(kind: str) -> Listed:
    try:
        found: Any = ENVIRONMENTS.load(kind)
    except BadInput as error:
        return Listed(kind, "", _one_line(error.found), error.next_step)
    about = _one_line((found.__doc__ or "").strip().split("\n\n")[0])
    required = [name for name, field in found.model_fields.items() if field.is_required()]
    try:
        if required:
            found.check_installed()
            return Listed(kind, about, _NEEDS_SETTINGS + ", ".join(required))
        with closing(found(kind=kind).make()):
            return Listed(kind, about, None)
    except CrlError as error:
        return Listed(kind, about, _one_line(error.found), _one_line(error.next_step or "") or None)
    except Exception as error:  # whatever a foreign environment does
        return Listed(kind, about, _one_line(f"{type(error).__name__}: {error}"))


def _one_line(text: str) -> str:
    return " ".join(text.split())
