"""Changes of whole statements: a case that is not handled, a step that is left out, a context that is not entered."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from crl.worlds.swe.places import Change, Source


def statement_changes(source: Source, node: ast.AST) -> Iterator[Change]:
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
