"""Child process: run the tests of one library many times, each time with some of its files replaced.

Started by path, so that it imports nothing of the project: standard library and pytest's `raises`. It reads one JSON
object from standard input and writes one line of JSON per trial. Each trial is a fork: it cannot change what the next
one sees, and it is ended where it takes too long or too much memory.

A test is a function without arguments, as in the libraries that ship. Of a test that fails, the trial may say where:
the index of the statement, what became of it and what it was worth ("observations").
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import json
import operator
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any

Files = dict[str, str]
Modules = list[tuple[str, CodeType, list[ast.FunctionDef]]]
Seen = tuple[int, str, str]

OPERATORS: dict[type[ast.cmpop], Any] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
MEMORY = 2 << 30
BUSY = 3.0
"""Seconds of processor time after which a trial is a hang: the tests of a library take a hundredth of it."""


class Found(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports from a dictionary of texts by path; `compiled` has the code of those that were there before."""

    def __init__(self, files: Files, compiled: dict[str, CodeType]) -> None:
        self.files = files
        self.compiled = compiled

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        stem = name.replace(".", "/")
        for place, package in ((f"{stem}/__init__.py", True), (f"{stem}.py", False)):
            if place in self.files:
                return importlib.util.spec_from_loader(name, self, origin=place, is_package=package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None and module.__spec__.origin is not None
        module.__file__ = place = module.__spec__.origin
        text = self.files[place]
        code = self.compiled.get(text) or compile(text, place, "exec")
        exec(code, module.__dict__)


def parsed(files: Files) -> Modules:
    """(path, code, trees of the tests) of each file of tests, in pytest's order."""
    found = []
    for path in sorted(path for path in files if path.startswith("tests/test_")):
        tree = ast.parse(files[path])
        functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
        found.append((path, compile(tree, path, "exec"), functions))
    return found


def tests(modules: Modules) -> Iterator[tuple[str, dict[str, Any] | None, ast.FunctionDef]]:
    """(name, namespace, function's tree) of each test."""
    for path, code, functions in modules:
        namespace: dict[str, Any] | None = {"__name__": path.replace("/", ".")[:-3]}
        try:
            exec(code, namespace)
        except BaseException:
            namespace = None
        for function in functions:
            yield f"{path}::{function.name}", namespace, function


def run(modules: Modules, observe: bool) -> dict[str, Any]:
    failed: list[str] = []
    observations: dict[str, Seen] = {}
    for name, namespace, function in tests(modules):
        try:
            assert namespace is not None  # its file could be executed
            namespace[function.name]()
        except BaseException:
            failed.append(name)
            if observe and namespace is not None:
                seen = observation(dict(namespace), function)
                if seen is not None:
                    observations[name] = seen
    return {"failed": failed, "observations": observations}


def observation(namespace: dict[str, Any], function: ast.FunctionDef) -> Seen | None:
    """The first statement of a test that goes wrong: its index, `returned`, `raised` or `silent`, and the value."""
    for index, statement in enumerate(function.body):
        try:
            wrong = step(namespace, statement)
        except AssertionError as error:
            inner = error.__context__
            if isinstance(statement, ast.With) and inner is not None:
                return index, "raised", told(inner)
            return None
        except BaseException as error:
            if type(error).__name__ == "Failed":  # pytest.raises around something that did not raise
                return (index, "silent", "") if isinstance(statement, ast.With) else None
            return index, "raised", told(error)
        if wrong is not None:
            return index, *wrong
    return None


def step(namespace: dict[str, Any], statement: ast.stmt) -> tuple[str, str] | None:
    """Execute a statement. Of an assertion that does not hold, how its left side came out."""
    if not isinstance(statement, ast.Assert):
        exec(compile(ast.Module([statement], []), "test", "exec"), namespace)
        return None
    test = statement.test
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right = (value(namespace, side) for side in (test.left, test.comparators[0]))
        holds = OPERATORS[type(test.ops[0])](left, right)
        plain = isinstance(test.ops[0], ast.Eq | ast.Is)
        return None if holds else ("returned", repr(left) if plain else repr(bool(holds)))
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        found = value(namespace, test.operand)
        return ("returned", repr(found)) if found else None
    found = value(namespace, test)
    return None if found else ("returned", repr(found))


def value(namespace: dict[str, Any], expression: ast.expr) -> Any:
    return eval(compile(ast.Expression(expression), "test", "eval"), namespace)


def told(error: BaseException) -> str:
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def forked(modules: Modules, finder: Found, observe: bool, seconds: float) -> dict[str, Any]:
    """The result of `run` in a process of its own; {"ended": …} where it came to no result."""
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        os.setsid()
        quiet = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(quiet, descriptor)
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        signal.setitimer(signal.ITIMER_REAL, seconds)  # its signal ends the process
        signal.setitimer(signal.ITIMER_PROF, min(seconds, BUSY))
        sys.meta_path.insert(0, finder)
        try:
            text = json.dumps(run(modules, observe))
        except BaseException as error:
            text = json.dumps({"ended": type(error).__name__})
        with os.fdopen(sending, "w") as out:
            out.write(text)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as source:
        text = source.read()
    os.waitpid(child, 0)
    return dict(json.loads(text)) if text else {"ended": "time or memory"}


def main() -> None:
    import pytest  # noqa: F401 - imported once, for all that are forked

    asked = json.load(sys.stdin)
    modules = parsed(asked["files"])
    sources = {path: text for path, text in asked["files"].items() if path.endswith(".py")}
    compiled = {text: compile(text, path, "exec") for path, text in sources.items() if not path.startswith("tests/")}
    for changed in asked["trials"]:
        finder = Found({**sources, **changed}, compiled)
        result = forked(modules, finder, asked["observe"], asked["seconds"])
        for _ in range(asked["times"] - 1):
            if "ended" not in result:
                again = forked(modules, finder, False, asked["seconds"])
                if again.get("failed") != result["failed"]:
                    result = {"ended": "differs from run to run"}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
