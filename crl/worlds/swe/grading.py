"""The program that runs hidden tests in the sandbox: it imports nothing of the project, and pytest before the tree.

It reads one JSON object from its input: the secret, the names of tests, the files to collect, the folders to import
from. For each test it writes a line to the report: a message authentication code under the secret, and what came of it.
Code under test can write to the report, but not what the secret vouches for; it can end the process, but then the lines
of the tests that did not run are missing. Classes and functions of pytest and unittest, and the plugins, are looked at
after every test: what is not as it was before any code of the tree was imported is reported with a digest of what it
is now. Plugins and conftests of honest repositories change some of it, too: the caller compares with what the reference
fix leaves (`grader`), and where anything else was changed, nothing counts.

This is no proof: tests and tested code share a process. It makes a forged result more work than the repair.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # nothing is imported from where this program lies: both modules above are there already
    sys.path[:] = [each for each in sys.path if each != os.path.split(os.path.realpath(__file__))[0]]

import hashlib
import hmac
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # an old Python does not know all of this
    from collections.abc import Callable

    Say = Callable[[dict[str, Any]], None]
    Definitions = list[tuple[Any, str, Any, Any]]

WATCHED = ("_pytest", "pluggy", "unittest")
UNWATCHED = ("_pytest.config",)
"""Here pytest changes itself while it begins."""
_DEEPEST = 4
"""Functions in closures of functions that a digest covers."""


def main() -> None:
    """Run the tests, and leave without running what the tested code may have registered for the end."""
    told = json.loads(sys.stdin.buffer.read())
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    report = os.dup(told["report"])  # where it is the output, pytest captures that
    if told["report"] > 2:
        os.close(told["report"])
    import pytest

    if not told["plugins"]:
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ["PYTHONPATH"] = os.pathsep.join(told["paths"])  # for processes that tests start
    say = _saying(report, bytes.fromhex(told.pop("secret")))
    sys.path[:0] = told["paths"]
    sys.dont_write_bytecode = True
    arguments = ["-q", "-p", "no:cacheprovider", "--rootdir", told["root"], *told["files"]]
    code = pytest.main([*arguments], plugins=[_plugin(told["names"], told["root"], say)])
    if code == pytest.ExitCode.USAGE_ERROR:  # options of the repository for plugins that are not here
        code = pytest.main(["-o", "addopts=", *arguments], plugins=[_plugin(told["names"], told["root"], say)])
    say({"end": int(code)})
    sys.stdout.flush()
    os._exit(0)


def _saying(report: int, secret: bytes) -> Say:
    """Writes a message, with its number and its code."""
    numbers = iter(range(1 << 30))
    digest, write, dumps = hmac.digest, os.write, json.dumps

    def say(message: dict[str, Any]) -> None:
        line = dumps([next(numbers), message]).encode()
        line = digest(secret, line, "sha256").hex().encode() + b" " + line + b"\n"
        line = b"\n" + line  # behind whatever else is written there
        while line:
            line = line[write(report, line) :]

    return say


def _plugin(names: list[str], root: str, say: Say) -> object:
    import pytest

    wanted = list(dict.fromkeys(names))
    before: Definitions = []
    members: list[tuple[type, frozenset[str]]] = []
    plugins: list[Any] = []
    outcomes: dict[str, tuple[bool, bool]] = {}

    class Grading:
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: Any) -> None:
            before.extend(_definitions())
            owners = {id(owner): owner for owner, *_ in before if isinstance(owner, type)}
            members.extend((owner, frozenset(vars(owner))) for owner in owners.values())
            plugins.append(early_config.pluginmanager)
            plugins.extend(each for each in early_config.pluginmanager.get_plugins() if not _is_below(root, each))

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            meant = _meanings(wanted, items)
            items[:] = [item for item in items if meant[item]]
            for item in items:
                say({"collected": meant[item], "item": item.nodeid})

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            passed = report.passed or (report.skipped and hasattr(report, "wasxfail"))
            called, good = outcomes.get(report.nodeid, (False, True))
            outcomes[report.nodeid] = (called or report.when == "call", good and passed)
            if report.when == "teardown":
                if changed := {**_changed(before, members), **_foreign(plugins[0], plugins)}:
                    say({"changed": changed})
                say({"ran": report.nodeid, "passed": all(outcomes[report.nodeid])})

    return Grading()


def _meanings(names: list[str], items: list[Any]) -> dict[Any, list[str]]:
    """The names of a row that mean each test. A name that means none by itself may be one that a log changed."""
    found: dict[Any, list[str]] = {item: [] for item in items}
    for name in names:
        plain = _escaped(name.strip())
        plain = plain[2:] if plain.startswith("./") else plain
        for ways in ((_is_meant,), (_is_cut, _is_described)):
            meant = [item for item in items if any(way(plain, item) for way in ways)]
            for item in meant:
                found[item].append(name)
            if meant:
                break
    return found


def _escaped(name: str) -> str:
    """A name with letters beyond ASCII as pytest writes them in ids."""
    return "".join(each if ord(each) < 128 else each.encode("unicode_escape").decode() for each in name)


def _is_meant(name: str, item: Any) -> bool:
    """Whether a name of a row means a test: its id; an id that was cut at its first blank, as the official logs cut it;
    `test (module.Class)` of unittest; or the name of a function alone."""
    if "::" in name:
        ids = _escaped(item.nodeid)
        return name in (ids, ids.split(" ")[0])
    plain = getattr(item, "originalname", None) or item.name
    if name.endswith(")") and " (" in name:
        method, _, dotted = name[:-1].partition(" (")
        owner = getattr(item, "cls", None)
        if owner is None or plain != method:
            return False
        dotted = dotted[: -len(method) - 1] if dotted.endswith(f".{method}") else dotted
        # By its module, and by its file: without `__init__.py` folders are no part of the module's name.
        modules = (owner.__module__, item.nodeid.split("::")[0].rpartition(".")[0].replace("/", "."))
        return any(f".{module}.{owner.__qualname__}".endswith(f".{dotted}") for module in modules)
    return name in (_escaped(plain), _escaped(item.name))


def _is_cut(name: str, item: Any) -> bool:
    """Whether a name is the beginning of an id with parameters."""
    return "[" in name and not name.endswith("]") and _escaped(item.nodeid).startswith(name)


def _is_described(name: str, item: Any) -> bool:
    """Whether a name is the first line of what a test says of itself, as unittest shows it."""
    said = (getattr(getattr(item, "obj", None), "__doc__", None) or "").strip().split("\n")[0].strip()
    return bool(said) and _escaped(said) == name


def _definitions() -> Definitions:
    """Every function and class of the watched modules, where it was found, and the code it runs."""
    found: Definitions = []
    function = type(main)
    modules = [each for name, each in list(sys.modules.items()) if each is not None and _is_watched(name)]
    for module in modules:
        for name, value in list(vars(module).items()):
            if isinstance(value, function):
                found.append((module, name, value, value.__code__))
            elif isinstance(value, type) and value.__module__ == module.__name__:
                for key, member in list(vars(value).items()):
                    if isinstance(member, (function, property, classmethod, staticmethod)):
                        found.append((value, key, member, getattr(member, "__code__", None)))
                found.append((module, name, value, None))
    return found


def _is_watched(module: str) -> bool:
    return module.split(".")[0] in WATCHED and not module.startswith(UNWATCHED)


def _changed(before: Definitions, members: list[tuple[type, frozenset[str]]]) -> dict[str, str]:
    """What is not as it was: functions, classes, and what a class has got since. By name, a digest of what it is.

    A class may get a function that was there before: pytest gives some to its own.
    """
    found, own = {}, {id(value) for _, _, value, _ in before}
    for owner, name, value, code in before:
        now = vars(owner).get(name)
        if now is not value or getattr(value, "__code__", None) is not code:
            found[f"{_named(owner)}.{name}"] = _digest(now)
    for owner, names in members:
        if len(vars(owner)) > len(names):
            for name in sorted(set(vars(owner)) - names):
                value = _function(vars(owner)[name])
                if hasattr(value, "__get__") and id(value) not in own:
                    found[f"{_named(owner)}.{name}"] = _digest(value)
    return found


def _foreign(manager: Any, before: list[Any]) -> dict[str, str]:
    """Plugins with hooks that were not there before, and are no conftest and of no package that had one there: pytest
    and installed plugins register more when they are configured."""
    packages = {_package(each) for each in before} - {__name__}
    found = {}
    for each in manager.get_plugins():
        conftest = (getattr(each, "__file__", None) or "").endswith("/conftest.py")
        if conftest or _package(each) in packages or any(each is known for known in before):
            continue
        hooks = [name for name in dir(each) if name.startswith("pytest_") and name != "pytest_plugins"]
        if hooks:
            found[f"plugin {_named(each)}"] = " ".join(_digest(getattr(each, name, None)) for name in hooks)
    return found


def _package(plugin: Any) -> str:
    """The package that a plugin is of: a module, a class, or an object of one."""
    return _module(plugin).partition(".")[0]


def _module(plugin: Any) -> str:
    if isinstance(plugin, type(sys)):
        return str(plugin.__name__)
    return str((plugin if isinstance(plugin, type) else type(plugin)).__module__)


def _is_below(root: str, plugin: Any) -> bool:
    """Whether a plugin is of a file of the tree."""
    file = getattr(sys.modules.get(_module(plugin)), "__file__", None) or ""
    return os.path.realpath(file).startswith(os.path.realpath(root) + os.sep)


def _named(value: Any) -> str:
    name = getattr(value, "__qualname__", "") if isinstance(value, type) else ""
    return f"{_module(value)}.{name or type(value).__qualname__}"


def _digest(value: Any, depth: int = 0) -> str:
    """What a definition does, in another process and from another line of its file the same."""
    value = _function(value)
    if not isinstance(value, type(main)):
        return _named(value)
    genuine = vars(sys.modules.get(value.__module__)) is value.__globals__ if value.__module__ in sys.modules else False
    parts = [value.__module__, value.__qualname__, genuine, _code(value.__code__), repr(value.__defaults__)[:80]]
    if depth < _DEEPEST:
        for cell in value.__closure__ or ():
            try:
                parts.append(_digest(cell.cell_contents, depth + 1))
            except ValueError:  # nothing is in it yet
                parts.append("")
    return hashlib.sha256(repr(parts).encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _function(value: Any) -> Any:
    """The function in a member of a class, or the member where there is none."""
    return value.fget if isinstance(value, property) else getattr(value, "__func__", value)


def _code(code: Any) -> tuple[Any, ...]:
    constants = [_code(each) if isinstance(each, type(code)) else repr(each) for each in code.co_consts]
    return (code.co_name, code.co_code, code.co_names, code.co_varnames, code.co_freevars, constants)


if __name__ == "__main__":
    main()
