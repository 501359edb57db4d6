"""Every command line that the project prints is quoted for a shell, also those that are written tomorrow.

The source is read: in a text that holds a command, what is filled in behind it comes out of `quoted` (or `shown`, which
calls it), is a number, or is one of the texts of our own that are listed here.
"""

from __future__ import annotations

import ast
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from crl.cli.shared import shown
from crl.paths import quoted

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(
    r"(?:^|[\s`(:;&|'\"])(?:crl [a-z][a-z-]*|make [a-z]+|python -m \S+|git(?: -C)?|kill(?: -CONT)?|mkdir|mv|rm|cp|cd|"
    r"export|pip install|prefect [a-z]+)(?=\s|$)"
)
"""How a command begins in a text."""
ENDS = re.compile(r"[`\n]|[;,.)] |: ")
QUOTES = {"quoted", "shown", "shlex.quote", "shlex.join", "key_of"}
OURS = {
    # Numbers.
    "ctx.round", "diff.round", "first", "kept.round", "parent.round", "holds.round", "owner.pid", "port + 8000",
    "other", "which", "min(first, last)", "max(first, last)", "until", "value",
    # Names of our own: options, extras, packages, addresses of this machine.
    "name", "variable", "extra", "requires", "download", "get", "own", "question", "self.url", "more",
    # Not in a command, though a word of one stands before it.
    "told", "short(row.repo)", "short(self.folder)", "arguments[0]", "said or error",
    # SWE's oracle writes commands for the sandbox.
    "parts[0]",
}  # fmt: skip
PLACES = {"name": {"crl/cli/train.py", "crl/worlds/webshop/catalog.py"}, "value": {"crl/cli/train.py"}}
"""Where such a general word of `OURS` is one of our own."""
SHELL = [
    "$(touch ran)", "`touch ran`", "a;touch ran", "it's", "a b", "a&touch ran", 'say "x"', "a\nb", "*", "~", "#x",
    "a\\b", "\x1b[31m", "ä", "!x", "", "a'\nb$(touch ran)",
]  # fmt: skip


@pytest.mark.parametrize("word", SHELL)
def test_a_shell_gives_the_word_back(word: str, tmp_path: Path) -> None:
    told = quoted(word)
    assert "\n" not in told and "\x1b" not in told, "a line break would look like the end of the command"
    said = subprocess.run(["bash", "-c", f"printf %s {told}"], cwd=tmp_path, capture_output=True, check=True).stdout
    assert said.decode() == word and not any(tmp_path.iterdir())


def test_a_path_that_begins_with_a_dash_is_no_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert quoted(Path("-rf")) == "./-rf" == shown(tmp_path / "-rf") and quoted("--x") == "--x"


def commands(tree: ast.AST) -> Iterator[tuple[ast.JoinedStr, ast.expr]]:
    """Every text with a command in it, and each of the values that are filled in behind the command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = ""
            for part in node.values:
                if isinstance(part, ast.Constant):
                    text += str(part.value)
                    continue
                found = list(COMMAND.finditer(text))
                if found and isinstance(part, ast.FormattedValue) and not ENDS.search(text[found[-1].end() :]):
                    yield node, part.value
                text += "X"


def is_safe(value: ast.expr, function: ast.AST, file: str) -> bool:
    """Whether a value is quoted, a number, a text of ours, or put together from such."""
    said = ast.unparse(value)
    if isinstance(value, ast.Call) and ast.unparse(value.func) in QUOTES:
        return True
    if isinstance(value, ast.Constant) or (said in OURS and file in PLACES.get(said, {file})):
        return True
    if isinstance(value, ast.IfExp):
        return is_safe(value.body, function, file) and is_safe(value.orelse, function, file)
    if isinstance(value, ast.BoolOp):
        return all(is_safe(each, function, file) for each in value.values)
    if isinstance(value, ast.JoinedStr):
        return all(is_safe(each.value, function, file) for each in value.values if isinstance(each, ast.FormattedValue))
    if isinstance(value, ast.Name):
        given = [each for each in ast.walk(function) if isinstance(each, ast.Assign)]
        set_to = [found for each in given for found in assigned(each, value.id)]
        return bool(set_to) and all(is_safe(each, function, file) for each in set_to)
    return False


def assigned(statement: ast.Assign, name: str) -> list[ast.expr]:
    """What a statement sets a name to."""
    found = []
    for target in statement.targets:
        pairs = [(target, statement.value)]
        if isinstance(target, ast.Tuple) and isinstance(statement.value, ast.Tuple):
            pairs = list(zip(target.elts, statement.value.elts, strict=True))
        found += [value for each, value in pairs if isinstance(each, ast.Name) and each.id == name]
    return found


def unquoted(source: str, file: str) -> list[str]:
    """`file:line: value` of what is filled into a command as it is."""
    tree = ast.parse(source)
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    found = []
    for node, value in commands(tree):
        around = [each for each in functions if each.lineno <= node.lineno <= (each.end_lineno or 0)]
        if not is_safe(value, around[-1] if around else tree, file):
            found.append(f"{file}:{node.lineno}: {ast.unparse(value)}")
    return found


@pytest.mark.slow
def test_what_is_filled_into_a_command_is_quoted() -> None:
    found = []
    for room in ("crl", "flows", "tasks"):
        for path in sorted((ROOT / room).rglob("*.py")):
            found += unquoted(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))
    assert found == [], "put it into quoted(), of crl.paths"


def test_the_pages_quote_as_well() -> None:
    for path in sorted((ROOT / "crl/report/templates").glob("*.html")):
        for command in re.findall(r"crl [a-z][^<]*", path.read_text(encoding="utf-8")):
            for value in re.findall(r"\{\{ (.*?) \}\}", command):
                assert "| quoted" in value or value in ("round.diff.round", "replays.episodes[0].id"), (
                    f"{path.name}: {value}"
                )


@pytest.mark.parametrize(
    "line",
    [
        'f"crl resume {path}"',
        'f"`crl status {run.name}` says more"',
        'f"next: git -C {folder} fetch"',
        'f"rm {a} {quoted(b)}"',
    ],
)
def test_a_new_one_would_be_found(line: str) -> None:
    assert unquoted(f"def told():\n    return {line}\n", "crl/x.py") != []
    assert unquoted("def told():\n    where = quoted(path)\n    return f'crl resume {where}'\n", "crl/x.py") == []


def test_the_words_of_a_command_are_told_from_a_shell_s() -> None:
    assert shlex.split(f"crl resume {quoted(Path('it is; $(x)'))} --rounds 3")[2] == "it is; $(x)"
