"""Words of public names, settings and columns: those that were dropped do not come back, and spelling is American.

What the words are that stay is in docs/glossary.md (tests/docs/test_glossary.py).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from crl.records import ROW_TYPES, schema_of

ROOT = Path(__file__).parents[2]
DROPPED = {
    "judge judges judged judging judgment judgments": "a judge gives rewards; else critique, grade, parse",
    "figure figures": "metric",
    "note notes": "experience, or footnote, remark, provenance",
    "arm arms": "condition; an arm is of a study",
    "floor floors": "min_… of what is bounded",
    "place places placed": "the key it is: a stage, a task's seed, a location, an index",
    "standing standings": "status",
    "putback": "put back is a verb",
    "unpaid": "unrewarded",
    "canary canaries": "probe",
    "realm realms": "a family; a realm is of the world `realms`",
    "each": "the thing: episode, row, slot",
    "found": "matches, results; beside `expected` it is what an error found",
    "told said": "text, message, words",
    "worth": "value, reward",
    "sureness": "standard_errors",
}
"""Words, and what a reader wants instead."""
REASONS = {word: reason for words, reason in DROPPED.items() for word in words.split()}
_OF_JUDGES = (
    "crl/rounds/judge", "crl/records/judge.py", "crl/config/", "crl/cli/init.py", "crl/recipes/dreamgym/config.py",
    "docs/config.md",
)  # fmt: skip
ALLOWED = {
    "judge": _OF_JUDGES,  # a model that gives rewards
    "judged": _OF_JUDGES,
    "arm": ("crl/lab/study/", "crl/cli/compare.py", "flows/compare.py"),
    "realm": ("crl/envs/realms.py",),
    "floor": ("crl/envs/sokoban.py",),  # of a room: the game's own word
}
"""Folders and files in which a word has its meaning of the glossary."""
BRITISH = re.compile(
    r"(?i)\b\w*(behaviour|colour|honour|favour(?!ed fra)|neighbour|labour|artefact|judgement|catalogue|modelled|"
    r"labelled|(normal|initial|optim|serial|summar|general|special|organ|recogn|emphas|minim|maxim|token|quant|random|regular)is"
    r"(e|ed|es|ing|ation|er)\b)"
)
SOURCES = sorted(path for room in ("crl", "flows", "tasks") for path in (ROOT / room).rglob("*.py"))


class Name(NamedTuple):
    """A public name, and those beside it: the other parameters, the other fields."""

    file: str
    line: int
    name: str
    beside: frozenset[str] = frozenset()


def words_of(name: str) -> list[str]:
    """Of `snake_case` and `CamelCase`, in lower case."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+", name)]


def public(name: str) -> bool:
    return not name.startswith("_")


def names_in(file: str, body: list[ast.stmt]) -> Iterator[Name]:
    """Public names of a module or class: classes, functions with their parameters, constants and fields."""
    fields = [
        target.id
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and public(target.id)
    ]
    yield from (Name(file, body[0].lineno, name, frozenset(fields)) for name in fields)
    for node in body:
        if isinstance(node, ast.ClassDef) and public(node.name):
            yield Name(file, node.lineno, node.name)
            yield from names_in(file, node.body)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and public(node.name):
            yield Name(file, node.lineno, node.name)
            given = node.args
            every = [*given.posonlyargs, *given.args, *given.kwonlyargs, *filter(None, [given.vararg, given.kwarg])]
            parameters = [each.arg for each in every if public(each.arg)]
            yield from (Name(file, node.lineno, name, frozenset(parameters)) for name in parameters)


@cache
def every_name() -> tuple[Name, ...]:
    """Public names of the packages, settings and columns, those of views too."""
    return tuple(_every_name())


def _every_name() -> Iterator[Name]:
    for path in SOURCES:
        file = path.relative_to(ROOT).as_posix()
        if public(path.stem):
            yield Name(file, 1, path.stem)
        yield from names_in(file, ast.parse(path.read_text(encoding="utf-8")).body)
    for row_type in ROW_TYPES:
        yield Name(row_type.__module__, 0, row_type.table)
        yield from (Name(row_type.__module__, 0, column) for column in schema_of(row_type).names)
    for page in ("config.md", "schema.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        named = re.findall(r"^(?:##+ |\| |- )`?([a-z_]+)", text, re.MULTILINE)
        yield from (Name(f"docs/{page}", 0, name) for name in named if name not in ("realm", "realms"))


def faults_of(name: Name) -> list[str]:
    """Why a name is not one, by its words."""
    return [
        f"{name.file}:{name.line}: {name.name}: {word!r} is dropped ({REASONS[word]})"
        for word in words_of(name.name)
        if word in REASONS
        and not name.file.startswith(ALLOWED.get(word.removesuffix("s"), ()) or ("?",))
        and not (word == "found" and "expected" in name.beside)
    ]


def test_no_public_name_setting_or_column_has_a_dropped_word() -> None:
    names = every_name()
    assert len(names) > 3000 and {"Critique", "min_uses", "condition"} <= {name.name for name in names}
    assert [fault for name in names for fault in faults_of(name)] == []


@pytest.mark.parametrize(
    ("name", "fits"),
    [
        (Name("crl/rounds/x.py", 1, "judge_part"), False),
        (Name("crl/rounds/x.py", 1, "JudgesOfOutputs"), False),
        (Name("crl/rounds/x.py", 1, "notesOf"), False),
        (Name("crl/rounds/x.py", 1, "found"), False),
        (Name("crl/rounds/x.py", 1, "found", frozenset({"found", "expected"})), True),
        (Name("crl/rounds/x.py", 1, "arm_of"), False),
        (Name("crl/lab/study/x.py", 1, "arm_of"), True),
        (Name("crl/rounds/x.py", 1, "annotated_footnotes"), True),
    ],
)
def test_what_counts_as_a_word(name: Name, fits: bool) -> None:
    assert (faults_of(name) == []) is fits


def test_spelling_is_american_in_names_pages_and_settings() -> None:
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md", *(ROOT / "conf").rglob("*.yaml")]
    texts = [(path.name, path.read_text(encoding="utf-8")) for path in pages] + [
        (f"{name.file}:{name.line}", " ".join(words_of(name.name))) for name in every_name()
    ]
    assert [(where, found.group()) for where, text in texts for found in BRITISH.finditer(text)] == []
    assert BRITISH.search("the behaviour") and BRITISH.search("normalised") and not BRITISH.search("a promise, advised")
