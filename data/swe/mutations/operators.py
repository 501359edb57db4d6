"""Operators that break correct code in one place, as people do.

`mutations(path, text)` finds every place where an operator applies, in the order of the text: pure syntax, nothing is
run. Whether a change is a bug, its tests say (`bugs.py`). The change is made in the text, not in its
tree, so that formatting and comments stay and the reference fix is a few lines.

| operators | what goes wrong |
|---|---|
| comparison, number, bound | a limit is off by one, or the wrong way round |
| arithmetic, condition, negation, extreme, method | one operation instead of its neighbor |
| branch, otherwise, statement, jump | a case is not handled, a step is left out |
| default, keyword, arguments, name | something else is passed than was meant |
| copy | two objects share what each should have of its own |
| context | a lock or another context is not entered |
| pattern | a regular expression matches more or less |
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

_COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
_ARITHMETIC: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.FloorDiv,
    ast.Mod: ast.FloorDiv,
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
_METHODS = {
    "append": "extend", "strip": "lstrip", "lstrip": "strip", "rstrip": "strip", "find": "rfind", "rfind": "find",
    "startswith": "endswith", "endswith": "startswith", "popleft": "pop", "fullmatch": "match", "match": "search",
    "search": "match", "partition": "rpartition", "rpartition": "partition", "split": "rsplit", "ljust": "rjust",
    "bisect_left": "bisect_right", "lower": "upper", "heappush": "append", "setdefault": "get", "keys": "values",
    "isspace": "isalpha", "add": "discard", "extend": "append", "update": "setdefault", "isupper": "isalpha",
}  # fmt: skip
_NAMES = {"bisect_left": "bisect_right", "bisect_right": "bisect_left", "ROUND_HALF_UP": "ROUND_HALF_EVEN"}
_COPIES = {"list", "dict", "set", "tuple"}


class Change(NamedTuple):
    """Characters `start` to `end` of a text are replaced by `text`."""

    start: int
    end: int
    text: str
    operator: str
    kind: str

    def trimmed(self, source: str) -> Change:
        """Without the blanks in front of what it takes out."""
        start = self.start
        while start and source[start - 1] == " ":
            start -= 1
        return self._replace(start=start)


class Source:
    """Offsets are in characters, lines count from 1."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tree = ast.parse(text)
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))
        self._parents: dict[ast.AST, ast.AST] = {}
        for node in ast.walk(self.tree):
            for child in ast.iter_child_nodes(node):
                self._parents[child] = node

    def walk(self) -> Iterator[tuple[ast.AST, ast.AST | None]]:
        """Each node but annotations, imports and docstrings, and its parent."""
        waiting: list[ast.AST] = [self.tree]
        while waiting:
            node = waiting.pop()
            yield node, self._parents.get(node)
            for name, value in ast.iter_fields(node):
                if name in ("annotation", "returns"):
                    continue
                children = value if isinstance(value, list) else [value]
                waiting += [child for child in children if isinstance(child, ast.AST) and not _said(child)]

    def line_of(self, offset: int) -> int:
        return self.text.count("\n", 0, offset) + 1

    def start_of_line(self, line: int) -> int:
        return self._starts[min(line, len(self._starts)) - 1]

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        """Offsets of a node. The tree counts columns in bytes."""
        ends = []
        for line, column in ((node.lineno, node.col_offset), (node.end_lineno or 0, node.end_col_offset or 0)):
            text = self._lines[line - 1].encode()[:column].decode()
            ends.append(self._starts[line - 1] + len(text))
        return ends[0], ends[1]

    def text_of(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def within(self, node: ast.expr, start: int, end: int) -> tuple[int, int]:
        """Offsets of a part of a node's text."""
        first = self.span(node)[0]
        return first + start, first + end

    def change(self, node: ast.expr | ast.stmt, text: str, operator: str, kind: str) -> Change:
        return Change(*self.span(node), text, operator, kind)

    def parenthesized(self, node: ast.expr, text: str) -> str:
        """The text of an expression in the place of another, so that it stays one operand."""
        inside = isinstance(self._parents.get(node), ast.BoolOp | ast.UnaryOp | ast.BinOp | ast.Compare)
        return f"({text})" if inside and isinstance(node, ast.BoolOp) else text

    def function_of(self, node: ast.AST) -> str:
        """Qualified name of the function or class that a node is in; "" at the top of the module."""
        names = []
        current: ast.AST | None = node
        while current is not None:
            if isinstance(current, ast.FunctionDef | ast.ClassDef):
                names.append(current.name)
            current = self._parents.get(current)
        return ".".join(reversed(names))

    def in_raise(self, node: ast.AST) -> bool:
        """Whether an expression is part of a message or of the making of an exception."""
        current: ast.AST | None = node
        while isinstance(current, ast.expr | ast.keyword | ast.FormattedValue):
            current = self._parents.get(current)
        return isinstance(current, ast.Raise)

    def is_annotation(self, node: ast.AST) -> bool:
        current: ast.AST | None = node
        while current is not None and not isinstance(current, ast.stmt):
            current = self._parents.get(current)
        return isinstance(current, ast.AnnAssign) and not self._inside(node, current.value)

    def alone(self, node: ast.stmt) -> bool:
        """Whether nothing else is in the statement's block, a docstring apart."""
        parent = self._parents[node]
        for _, block in ast.iter_fields(parent):
            if isinstance(block, list) and node in block:
                return not [each for each in block if each is not node and not _said(each)]
        return True

    def parameters_beside(self, node: ast.AST) -> list[str]:
        """Names of the parameters of the function that a node is in, without `self`."""
        current = self._parents.get(node)
        while current is not None and not isinstance(current, ast.FunctionDef):
            if isinstance(current, ast.arguments | ast.Lambda):
                return []
            current = self._parents.get(current)
        if current is None:
            return []
        return [each.arg for each in (*current.args.args, *current.args.kwonlyargs) if each.arg != "self"]

    def _inside(self, node: ast.AST, whole: ast.AST | None) -> bool:
        return whole is not None and any(each is node for each in ast.walk(whole))


def _said(node: ast.AST) -> bool:
    """Imports, and text that stands by itself."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


@dataclass(frozen=True)
class Mutation:
    """A change of one file. `kind` is a kind of bug, `function` the qualified name of the function it is in."""

    path: str
    start: int
    end: int
    text: str
    operator: str
    kind: str
    function: str
    line: int

    def applied(self, source: str) -> str:
        return source[: self.start] + self.text + source[self.end :]

    @property
    def digest(self) -> str:
        """Tells it from others that begin at the same place."""
        return hashlib.sha256(f"{self.end} {self.text}".encode()).hexdigest()[:6]


def mutations(path: str, text: str) -> list[Mutation]:
    """All mutations of a module, each giving another text that is still Python."""
    source = Source(text)
    found: dict[str, Mutation] = {}
    for node, owner in source.walk():
        for change in (*_expression_changes(source, node, owner), *_statement_changes(source, node)):
            function = source.function_of(node)
            mutation = Mutation(path, *change, function, source.line_of(change.start))
            result = mutation.applied(text)
            if result != text and result not in found and _is_python(result):
                found[result] = mutation
    return sorted(found.values(), key=lambda mutation: (mutation.start, mutation.end, mutation.text))


def _is_python(text: str) -> bool:
    try:
        compile(text, "mutated", "exec")
    except SyntaxError:
        return False
    return True


def _expression_changes(source: Source, node: ast.AST, owner: ast.AST | None) -> Iterator[Change]:
    if isinstance(node, ast.expr) and source.in_raise(node):
        return
    if isinstance(node, ast.Compare):
        yield from _comparison(source, node)
    elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
        yield from _arithmetic(source, node)
    elif isinstance(node, ast.BoolOp):
        yield _changed(source, node, "condition", "logic", _other_condition)
        for index in range(len(node.values)):
            yield _changed(source, node, "condition", "logic", _dropper("values", index))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield source.change(node, source.text_of(node.operand), "negation", "logic")
    elif isinstance(node, ast.Constant):
        yield from _constant(source, node, owner)
    elif isinstance(node, ast.Call):
        yield from _call(source, node)
    elif isinstance(node, ast.Subscript | ast.Slice):
        yield from _bounds(source, node)
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield from _name(source, node)
    elif isinstance(node, ast.IfExp):
        yield source.change(node, source.text_of(node.body), "branch", "logic")
        yield source.change(node, source.text_of(node.orelse), "branch", "logic")
    elif isinstance(node, ast.arguments):
        yield from _defaults(source, node)
    elif isinstance(node, ast.comprehension):
        for test in node.ifs:
            start, end = source.span(test)
            before = source.text.rfind("if", 0, start)
            yield Change(before, end, "", "branch", "logic").trimmed(source.text)


def _comparison(source: Source, node: ast.Compare) -> Iterator[Change]:
    left: ast.expr = node.left
    for operator, right in zip(node.ops, node.comparators, strict=True):
        old, new = _COMPARISONS[type(operator)]
        start, end = source.span(left)[1], source.span(right)[0]
        between = source.text[start:end]
        kind = "boundary" if old in ("<", "<=", ">", ">=") else "logic"
        yield Change(start, end, between.replace(old, new, 1), "comparison", kind)
        if kind == "boundary":
            turned = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}[old]
            yield Change(start, end, between.replace(old, turned, 1), "comparison", "logic")
        left = right


def _arithmetic(source: Source, node: ast.BinOp) -> Iterator[Change]:
    start, end = source.span(node.left)[1], source.span(node.right)[0]
    names = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.FloorDiv: "//", ast.Div: "/", ast.Mod: "%"}
    old, new = names[type(node.op)], names[_ARITHMETIC[type(node.op)]]
    yield Change(start, end, source.text[start:end].replace(old, new, 1), "arithmetic", "logic")
    yield source.change(node, source.text_of(node.left), "arithmetic", "boundary")


def _constant(source: Source, node: ast.Constant, owner: ast.AST | None) -> Iterator[Change]:
    value = node.value
    if isinstance(value, bool):
        yield source.change(node, str(not value), "number", "logic")
    elif isinstance(value, int):
        for other in (value + 1, value - 1):
            yield source.change(node, str(other), "number", "boundary")
    elif isinstance(value, float):
        yield source.change(node, repr(value * 10), "number", "boundary")
        yield source.change(node, repr(value + 1), "number", "boundary")
    elif isinstance(value, str) and isinstance(owner, ast.Call) and ast.unparse(owner.func) == "re.compile":
        text = source.text_of(node)
        for at, sign in enumerate(text):
            if sign in "+*?" and at and text[at - 1] not in "\\(":
                quantifier = {"+": "*", "*": "+", "?": ""}[sign]
                yield Change(*source.within(node, at, at + 1), quantifier, "pattern", "parsing")
    elif isinstance(value, str) and 0 < len(value) <= 3 and isinstance(owner, ast.Compare | ast.Call):
        yield source.change(node, repr(value[:-1]), "pattern", "parsing")


def _call(source: Source, node: ast.Call) -> Iterator[Change]:
    function = node.func
    if isinstance(function, ast.Name) and function.id in _FUNCTIONS:
        yield source.change(function, _FUNCTIONS[function.id], "extreme", "logic")
    if isinstance(function, ast.Name) and function.id in _COPIES and len(node.args) == 1 and not node.keywords:
        yield source.change(node, source.text_of(node.args[0]), "copy", "state")
    if isinstance(function, ast.Attribute):
        if function.attr == "copy" and not node.args:
            yield source.change(node, source.text_of(function.value), "copy", "state")
        if function.attr in _METHODS:
            end = source.span(function)[1]
            yield Change(end - len(function.attr), end, _METHODS[function.attr], "method", "misuse")
        if function.attr == "pop" and len(node.args) < 2:
            inside = "" if node.args else "0"
            yield Change(source.span(function)[1] + 1, source.span(node)[1] - 1, inside, "method", "misuse")
    if len(node.args) == 2 and not any(isinstance(each, ast.Starred) for each in node.args):
        first, second = (source.text_of(each) for each in node.args)
        span = source.span(node.args[0])[0], source.span(node.args[1])[1]
        yield Change(*span, f"{second}, {first}", "arguments", "misuse")
    for index in range(len(node.keywords)):
        yield _changed(source, node, "keyword", "misuse", _dropper("keywords", index))


def _bounds(source: Source, node: ast.Subscript | ast.Slice) -> Iterator[Change]:
    parts = [node.lower, node.upper] if isinstance(node, ast.Slice) else [node.slice]
    for part in parts:
        if isinstance(part, ast.Name | ast.Attribute | ast.BinOp) and not source.is_annotation(part):
            for sign in "+-":
                yield source.change(part, f"{source.text_of(part)} {sign} 1", "bound", "boundary")
    if isinstance(node, ast.Slice) and node.step is not None:
        yield source.change(node, source.text_of(node).rpartition(":")[0], "bound", "boundary")


def _name(source: Source, node: ast.Name) -> Iterator[Change]:
    if node.id in _NAMES:
        yield source.change(node, _NAMES[node.id], "name", "misuse")
    others = source.parameters_beside(node)
    if node.id in others:
        following = others[(others.index(node.id) + 1) % len(others)]
        if following != node.id:
            yield source.change(node, following, "name", "misuse")


def _defaults(source: Source, node: ast.arguments) -> Iterator[Change]:
    for default in [*node.defaults, *node.kw_defaults]:
        if isinstance(default, ast.Constant) and default.value is None:
            yield source.change(default, "0", "default", "misuse")
        elif isinstance(default, ast.Constant) and isinstance(default.value, str):
            yield source.change(default, repr(f"{default.value} "), "default", "misuse")


def _changed(
    source: Source, node: ast.expr, operator: str, kind: str, change: Callable[[ast.expr], ast.expr]
) -> Change:
    """The change of an expression whose tree is changed; its text is written anew."""
    return source.change(node, source.parenthesized(node, ast.unparse(change(copy.deepcopy(node)))), operator, kind)


def _other_condition(node: ast.expr) -> ast.expr:
    assert isinstance(node, ast.BoolOp)
    node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
    return node


def _dropper(name: str, index: int) -> Callable[[ast.expr], ast.expr]:
    def dropped(node: ast.expr) -> ast.expr:
        parts = getattr(node, name)
        del parts[index]
        return parts[0] if isinstance(node, ast.BoolOp) and len(parts) == 1 else node

    return dropped


# -- changes of whole statements ---------------------------------------------------------------------------------------


def _statement_changes(source: Source, node: ast.AST) -> Iterator[Change]:
    """The changes that begin at a statement; none for any other node."""
    if isinstance(node, ast.If):
        yield from _branches(source, node)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield _removed(source, node, "statement", "state")
    elif isinstance(node, ast.AugAssign):
        yield _removed(source, node, "statement", "state")
        yield _plain(source, node)
    elif isinstance(node, ast.Assign | ast.Delete) and _lasting(node):
        yield _removed(source, node, "statement", "state")
    elif isinstance(node, ast.With):
        yield _without_context(source, node)
    elif isinstance(node, ast.Break | ast.Continue):
        other = "continue" if isinstance(node, ast.Break) else "break"
        yield source.change(node, other, "jump", "logic")
        yield _removed(source, node, "jump", "logic")
    elif isinstance(node, ast.Try) and node.finalbody and not node.handlers:
        yield _without_finally(source, node)


def _lasting(node: ast.Assign | ast.Delete) -> bool:
    """Whether an assignment or deletion reaches beyond its function: attributes and items."""
    return all(isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets)


def _branches(source: Source, node: ast.If) -> Iterator[Change]:
    if not node.orelse:
        ends = isinstance(node.body[-1], ast.Return | ast.Raise | ast.Continue | ast.Break)
        if source.text.startswith("if", source.span(node)[0]):  # an elif begins with its test's line as well
            yield _removed(source, node, "branch", "logic" if ends else "state")
    else:
        last = node.body[-1].end_lineno or 0
        start, end = source.start_of_line(last + 1), source.start_of_line((node.end_lineno or 0) + 1)
        yield Change(start, end, "", "otherwise", "logic")
    test = source.text_of(node.test)
    if len(test) <= 60 and "\n" not in test and not isinstance(node.test, ast.Compare | ast.UnaryOp | ast.BoolOp):
        yield source.change(node.test, f"not {test}", "negation", "logic")


def _removed(source: Source, node: ast.stmt, operator: str, kind: str) -> Change:
    """The statement's lines taken out; `pass` takes its place where nothing else is in the block."""
    start, end = source.start_of_line(node.lineno), source.start_of_line((node.end_lineno or 0) + 1)
    blank = " " * node.col_offset
    return Change(start, end, f"{blank}pass\n" if source.alone(node) else "", operator, kind)


def _plain(source: Source, node: ast.AugAssign) -> Change:
    """`x += y` as `x = y`: what was there before is lost."""
    left, right = source.text_of(node.target), source.text_of(node.value)
    return source.change(node, f"{left} = {right}", "statement", "state")


def _without_context(source: Source, node: ast.With) -> Change:
    """The body of a `with`, not indented."""
    start, end = source.start_of_line(node.lineno), source.start_of_line((node.end_lineno or 0) + 1)
    body = source.text[source.start_of_line(node.body[0].lineno) : end]
    lines = [line.removeprefix("    ") for line in body.splitlines(keepends=True)]
    locks = "lock" in source.text_of(node.items[0].context_expr)
    return Change(start, end, "".join(lines), "context", "concurrency" if locks else "state")


def _without_finally(source: Source, node: ast.Try) -> Change:
    """What has to happen in any case happens only if all goes well."""
    start, end = source.start_of_line(node.lineno), source.start_of_line((node.end_lineno or 0) + 1)
    lines = []
    for statement in (*node.body, *node.finalbody):
        first = source.start_of_line(statement.lineno)
        text = source.text[first : source.start_of_line((statement.end_lineno or 0) + 1)]
        lines += [line.removeprefix("    ") for line in text.splitlines(keepends=True)]
    return Change(start, end, "".join(lines), "context", "state")
