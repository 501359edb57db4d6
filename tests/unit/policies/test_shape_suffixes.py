"""Suffixes of tensors: every letter is in the legend of the package, and the legend has no letter that nobody uses."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import crl.policies

SUFFIX = re.compile(r"[a-z]_([A-Z0-9]+)$")


def test_the_legend_is_of_the_letters_that_are_used() -> None:
    used: set[str] = set()
    for path in Path(crl.policies.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name = {ast.Name: "id", ast.Attribute: "attr", ast.arg: "arg"}.get(type(node))
            match = SUFFIX.search(getattr(node, name)) if name else None
            used |= set(match[1] if match else "") - set("0123456789")
    legend = (crl.policies.__doc__ or "").partition("Suffixes of tensors")[2].partition("`logits_BV`")[2]
    assert used == set(re.findall(r"\b[A-Z]\b", legend))
