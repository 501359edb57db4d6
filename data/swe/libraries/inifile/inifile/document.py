"""Sections, keys and values, with references between them."""

import re
from dataclasses import dataclass
from typing import Any

from inifile.errors import IniError

_REFERENCE = re.compile(r"\$(?:\$|\{([^}]*)\})")
_TRUE = {"1", "yes", "true", "on"}
_FALSE = {"0", "no", "false", "off"}
_UNSET: Any = object()


@dataclass
class Value:
    """A value as written; in a `quoted` one, references are text."""

    text: str
    quoted: bool = False


class Document:
    """What a file of settings says. Names are found in any case of letters."""

    def __init__(self) -> None:
        self._sections: dict[str, tuple[str, dict[str, tuple[str, Value]]]] = {"": ("", {})}

    def add_section(self, section: str) -> None:
        """Make a section; one that there is stays as it is."""
        self._sections.setdefault(section.lower(), (section, {}))

    def set(self, section: str, key: str, text: str, quoted: bool = False) -> None:
        """Give a key its value. Section and key are made where there is none."""
        self.add_section(section)
        keys = self._sections[section.lower()][1]
        name = keys[key.lower()][0] if key.lower() in keys else key
        keys[key.lower()] = (name, Value(text, quoted))

    def sections(self) -> list[str]:
        """Names of the sections in order of appearance, without the one before the first."""
        return [name for name, _ in self._sections.values() if name]

    def keys(self, section: str) -> list[str]:
        """Names of a section's keys in order of appearance. Raises KeyError."""
        return [name for name, _ in self._sections[section.lower()][1].values()]

    def raw(self, section: str, key: str) -> Value:
        """A value with its references unresolved. Raises KeyError."""
        return self._sections[section.lower()][1][key.lower()][1]

    def get(self, section: str, key: str, default: Any = _UNSET) -> Any:
        """The text of a value with its references resolved; `default` where there is no such key, else KeyError."""
        try:
            return self._resolved(section, key, ())
        except KeyError:
            if default is _UNSET:
                raise KeyError(f"no key {key!r} in section {section!r}") from None
            return default

    def get_int(self, section: str, key: str, default: Any = _UNSET) -> Any:
        text = self.get(section, key, None if default is not _UNSET else _UNSET)
        return default if text is None else int(text)

    def get_bool(self, section: str, key: str, default: Any = _UNSET) -> Any:
        """True for 1, yes, true and on, False for 0, no, false and off, in any case; else ValueError."""
        text = self.get(section, key, None if default is not _UNSET else _UNSET)
        if text is None:
            return default
        word = text.strip().lower()
        if word in _TRUE:
            return True
        if word in _FALSE:
            return False
        raise ValueError(f"neither true nor false: {text!r}")

    def get_list(self, section: str, key: str, separator: str = ",") -> list[str]:
        """The parts of a value without the blanks around them; empty parts are left out."""
        return [part.strip() for part in self.get(section, key).split(separator) if part.strip()]

    def _resolved(self, section: str, key: str, seen: tuple[tuple[str, str], ...]) -> str:
        place = (section.lower(), key.lower())
        if place in seen:
            raise IniError(f"the reference {section}:{key} leads back to itself")
        value = self.raw(section, key)
        if value.quoted:
            return value.text

        def replaced(match: re.Match[str]) -> str:
            if match[1] is None:
                return "$"
            return self._referred(section, match[1], (*seen, place))

        return _REFERENCE.sub(replaced, value.text)

    def _referred(self, section: str, reference: str, seen: tuple[tuple[str, str], ...]) -> str:
        other, colon, key = reference.partition(":")
        tried = [(other, key)] if colon else [(section, reference), ("", reference)]
        for place, name in tried:
            try:
                self.raw(place, name)
            except KeyError:
                continue
            return self._resolved(place, name, seen)
        raise IniError(f"the reference ${{{reference}}} in section {section!r} leads nowhere")
