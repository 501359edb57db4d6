"""What a user of a library reports of a bug: the calls, what came of them, and what was expected.

Made from a test that fails, up to the statement that goes wrong: its code without assertions is what the user wrote,
the value that came out is what was seen. Nothing says where the bug is.
"""

from __future__ import annotations

import ast
import random
from dataclasses import dataclass

from crl.worlds.swe.library import Library
from data.swe.mutations.trials import Observation

_LONGEST = 400
_TITLES = {
    "returned": (
        "Wrong result of {what}",
        "{what} returns something else than it should",
        "{what} gives a wrong result",
    ),
    "raised": ("{what} fails with {error}", "{error} where none should be ({what})", "Unexpected {error} in {what}"),
    "silent": ("{what} accepts what it should refuse", "No exception from {what}", "{what} should raise, but does not"),
}
_RETURNED = (
    "The last line gives\n\n```\n{got}\n```\n\nIt should give `{expected}`.",
    "Actual result of the last line: `{got}`\n\nExpected: `{expected}`",
    "I expected `{expected}` from the last line, but what comes back is `{got}`.",
)
_RAISED = (
    "The last line ends with `{got}`. {instead}",
    "This raises\n\n```\n{got}\n```\n\n{instead}",
)
_SILENT = (
    "The last line should raise {expected}. No exception comes.",
    "I expected {expected} from the last line, but it goes through without any error.",
)
_OPENINGS = (
    "With version {version} of `{package}`:",
    "To reproduce:",
    "This is what I run (`{package}` {version}):",
    "",
)


@dataclass(frozen=True)
class Report:
    """One observation as a user sees it. `code` ends with the line that goes wrong, which calls `called`."""

    code: str
    last: str
    how: str
    got: str
    expected: str
    called: str


def report_of(library: Library, test: str, seen: Observation) -> Report | None:
    """The report of an observation; None where it would tell too little: long values, or addresses in memory."""
    path, _, name = test.partition("::")
    module = ast.parse({**library.files, **library.hidden_tests}[path])
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == name)
    statement = function.body[seen.statement]
    last, expected = _asked(statement, seen.how)
    lines = [line for each in function.body[: seen.statement] if (line := _before(each))]
    used = _helpers(module, "\n".join([*lines, last]), library.name)
    called = _called(statement)
    if len(seen.got) > _LONGEST or " at 0x" in seen.got or not called:
        return None
    return Report("\n".join([*used, *lines, last]), last, seen.how, seen.got, expected, called)


def statement(reports: list[Report], package: str, seed: str) -> str:
    """The problem statement of one or two reports. The same seed words it alike."""
    generator = random.Random(f"swe statement {seed}")
    first = reports[0]
    error = first.got.partition(":")[0]
    title = generator.choice(_TITLES[first.how]).format(what=f"`{first.called}`", error=f"`{error}`")
    version = f"{generator.randint(0, 3)}.{generator.randint(0, 9)}"
    opening = generator.choice(_OPENINGS).format(package=package, version=version)
    parts = [title, opening, _told(first, generator)]
    for other in reports[1:]:
        parts += [
            generator.choice(("It may be the same cause here:", "Another case:", "Also:")),
            _told(other, generator),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _told(report: Report, generator: random.Random) -> str:
    if report.how == "returned":
        text = generator.choice(_RETURNED).format(got=report.got, expected=report.expected)
    elif report.how == "raised":
        instead = f"Expected: {report.expected}." if report.expected else "It should go through."
        text = generator.choice(_RAISED).format(got=report.got, instead=instead)
    else:
        text = generator.choice(_SILENT).format(expected=report.expected)
    return f"```python\n{report.code}\n```\n\n{text}"


def _asked(node: ast.stmt, how: str) -> tuple[str, str]:
    """The code whose result is at stake, and what was expected of it, as text for the report."""
    if isinstance(node, ast.With) and "raises" in ast.unparse(node.items[0]):
        return "\n".join(ast.unparse(each) for each in node.body), _exception(node.items[0].context_expr)
    if isinstance(node, ast.With):
        inner = [f"    {line}" for each in node.body for line in _before(each).splitlines()]
        return "\n".join([f"with {', '.join(map(ast.unparse, node.items))}:", *inner]), ""
    if not isinstance(node, ast.Assert):
        return ast.unparse(node), ""
    test = node.test
    if isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Eq | ast.Is) and len(test.ops) == 1:
        value = ast.unparse(test.comparators[0])
        return ast.unparse(test.left), value if how == "returned" else f"`{value}`"
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return ast.unparse(test.operand), "False" if how == "returned" else "`False`"
    return ast.unparse(test), "True" if how == "returned" else "`True`"


def _exception(expression: ast.expr) -> str:
    """The exception that `pytest.raises(…)` expects, in words."""
    if not isinstance(expression, ast.Call) or not expression.args:
        return "an exception"
    name = f"`{ast.unparse(expression.args[0])}`"
    match = next((each.value for each in expression.keywords if each.arg == "match"), None)
    return name if match is None else f"{name} (message: {ast.unparse(match)})"


def _before(node: ast.stmt) -> str:
    """An earlier statement: of an assertion, the calls in it."""
    if not isinstance(node, ast.Assert):
        return ast.unparse(node)
    test = node.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1 and isinstance(test.ops[0], ast.Eq | ast.Is):
        test = test.left
    return ast.unparse(test) if any(isinstance(each, ast.Call) for each in ast.walk(test)) else ""


def _helpers(module: ast.Module, code: str, package: str) -> list[str]:
    """Imports, functions and classes of the test's module that the code uses, directly or by one another."""
    wanted, kept = _names(ast.parse(code)), set[ast.stmt]()
    defined = [node for node in module.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    changed = True
    while changed:
        new = [node for node in defined if node.name in wanted and node not in kept]
        kept.update(new)
        wanted |= {name for node in new for name in _names(node)}
        changed = bool(new)
    lines = []
    for node in module.body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            used = [alias for alias in node.names if (alias.asname or alias.name) in wanted]
            if used:
                node.names = used
                lines.append(ast.unparse(node))
        elif node in kept:
            lines.append("\n" + ast.unparse(node) + "\n")
    return lines


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _called(node: ast.stmt) -> str:
    """What the statement asks: the outermost call on its left side, `in`, or an attribute."""
    inside: ast.AST = node
    if isinstance(node, ast.With):
        inside = node.body[-1]
    elif isinstance(node, ast.Assert):
        inside = node.test.left if isinstance(node.test, ast.Compare) else node.test
        if isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], ast.In | ast.NotIn):
            return "in"
    plain = {"list", "str", "len", "repr", "bool", "sorted", "dict", "set", "tuple"}
    calls = [each for each in ast.walk(inside) if isinstance(each, ast.Call)]
    for call in calls:
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        if name not in plain:
            return name
    attributes = [each.attr for each in ast.walk(inside) if isinstance(each, ast.Attribute)]
    if attributes:
        return attributes[0]
    return ast.unparse(inside)[:40] if isinstance(inside, ast.expr | ast.Delete | ast.Expr | ast.Assign) else ""
