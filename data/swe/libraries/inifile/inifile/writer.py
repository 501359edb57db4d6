"""From a document to text."""

from inifile.document import Document, Value

_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}


def dumps(document: Document) -> str:
    """Text that reads back as the same document: keys without a section first, a blank line before each section."""
    blocks = []
    for section in ["", *document.sections()]:
        lines = [f"[{section}]"] if section else []
        lines += [f"{key} = {_written(document.raw(section, key))}" for key in document.keys(section)]
        if lines:
            blocks.append("\n".join(lines) + "\n")
    return "\n".join(blocks)


def _written(value: Value) -> str:
    if value.quoted or _needs_quotes(value.text):
        return '"' + "".join(_ESCAPES.get(character, character) for character in value.text) + '"'
    return value.text


def _needs_quotes(text: str) -> bool:
    risky = text != text.strip() or text.startswith(('"', "#", ";")) or "\n" in text
    return risky or " #" in text or " ;" in text
