"""From text to a document."""

import re

from inifile.document import Document
from inifile.errors import IniError

_SECTION = re.compile(r"\[([^\[\]]+)\]\s*(?:[#;].*)?")
_SEPARATOR = re.compile(r"[=:]")
_COMMENT = re.compile(r"\s[#;].*")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"\s*(?:\s[#;].*)?')
_ESCAPES = {"n": "\n", "t": "\t", '"': '"', "\\": "\\"}


def loads(text: str) -> Document:
    """The document of a text. Raises IniError with the number of the line."""
    document = Document()
    section, last = "", None
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#;":
            continue
        if line[0].isspace():
            if last is None:
                raise IniError("a continued line without a value above it", number)
            _continue(document, section, last, stripped, number)
            continue
        if stripped.startswith("["):
            match = _SECTION.fullmatch(stripped)
            if match is None or not match[1].strip():
                raise IniError(f"no section: {stripped!r}", number)
            section, last = match[1].strip(), None
            document.add_section(section)
            continue
        last = _key(document, section, stripped, number)
    return document


def _key(document: Document, section: str, line: str, number: int) -> str:
    """Read `key = value` into the document; the key."""
    found = _SEPARATOR.search(line)
    if found is None:
        raise IniError(f"no = or : in {line!r}", number)
    key, value = line[: found.start()].strip(), line[found.end() :].strip()
    if not key:
        raise IniError("a value without a key", number)
    if value.startswith('"'):
        match = _QUOTED.fullmatch(value)
        if match is None:
            raise IniError("a quoted value does not end", number)
        document.set(section, key, _unescaped(match[1], number), quoted=True)
    else:
        document.set(section, key, _without_comment(value))
    return key


def _continue(document: Document, section: str, key: str, line: str, number: int) -> None:
    above = document.raw(section, key)
    if above.quoted:
        raise IniError("a quoted value is continued", number)
    document.set(section, key, f"{above.text} {_without_comment(line)}".strip())


def _without_comment(value: str) -> str:
    return _COMMENT.sub("", f" {value}").strip()


def _unescaped(text: str, number: int) -> str:
    def character(match: re.Match[str]) -> str:
        if match[1] not in _ESCAPES:
            raise IniError(f"unknown escape \\{match[1]}", number)
        return _ESCAPES[match[1]]

    return re.sub(r"\\(.)", character, text)
