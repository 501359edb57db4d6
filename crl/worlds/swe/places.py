"""A Python text and its syntax tree: where each node is, and what is around it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple


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
