"""A chat as environments write them, long and with unusual characters: what a chat format is checked with."""

from __future__ import annotations

from collections.abc import Callable

_SCREEN = (
    "╔═══════════╗   Dlvl:1  $:0  HP:14(14)\n"
    "║...........+###   @ stands south-east of the fountain {\n"
    "║..<....d...║  #\t\t\x1b[1mYou see here:\x1b[0m a +0 dagger (weapon in hand)\n"
    "╚═══|-|═════╝  ##########      ^^^\n\n\n"
)
_PAGE = (
    "Search results (page 3 of 17) [Back to Search]: www.example.org/a?b=1&c=%20 <b>Rückgabe</b> … 12,345.67 € – "
    "“São Paulo”, Ελλάδα, Москва, 北京市の天気, العربية, हिन्दी, 🙂👩‍🚀, x² ≠ ½, naïve café, A\u00a0B, zero\u200bwidth\n"
)
_CODE = (
    "```python\r\ndef f(x):\r\n        return {'a': [x, *range(10)], \"b\": None}  # TODO\r\n```\n"
    "$ ls -l | grep '*.py'\n"
    '{"name": "search", "arguments": {"query": "a\\nb", "k": 5}}\n'
)


def long_texts(number: int, without: Callable[[str], str]) -> list[str]:
    """So many texts for the turns of a chat, of some 4,000 characters each, without white space around them.

    `without` takes out what would be control tokens.
    """
    parts = [
        "".join(f"{turn}. {part}" for turn in range(first, first + 4) for part in (_SCREEN, _PAGE, _CODE))
        + "-" * 300
        + "aAbB" * 100
        for first in range(number)
    ]
    return [without(f"Turn {index}. {part}THE KEY IS UNDER THE MAT.").strip() for index, part in enumerate(parts)]
