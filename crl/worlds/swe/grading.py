"""The program that runs hidden tests in the sandbox: it imports nothing of the project, and pytest before the tree.

It reads one JSON object from its input: the secret, the names of tests, the files to collect, the folders to import
from. For each test it writes a line to the report: a message authentication code under the secret, and what came of it.
Code under test can write to the report, but not what the secret vouches for; it can end the process, but then the lines
of the tests that did not run are missing. Classes and functions of pytest and unittest, and the plugins, are looked at
after every test: where one is not what it was before any code of the tree was imported, nothing counts.

This is no proof: tests and tested code share a process. It makes a forged result more work than the repair.
"""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":  # nothing is imported from where this program lies: both modules above are there already
    sys.path[:] = [each for each in sys.path if each != os.path.split(os.path.realpath(__file__))[0]]

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
    code = pytest.main([*arguments], plugins=[_plugin(told["names"], say)])
    if code == pytest.ExitCode.USAGE_ERROR:  # options of the repository for plugins that are not here
        code = pytest.main(["-o", "addopts=", *arguments], plugins=[_plugin(told["names"], say)])
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


def _plugin(names: list[str], say: Say) -> object:
    import pytest

    wanted = list(dict.fromkeys(names))
    before: Definitions = []
    plugins: list[Any] = []
    outcomes: dict[str, tuple[bool, bool]] = {}

    class Grading:
        @pytest.hookimpl(tryfirst=True)
        def pytest_load_initial_conftests(self, early_config: Any) -> None:
            before.extend(_definitions())
            plugins.append(early_config.pluginmanager)
            plugins.extend(early_config.pluginmanager.get_plugins())

        @pytest.hookimpl(trylast=True)
        def pytest_collection_modifyitems(self, items: list[Any]) -> None:
            meant = {item: [name for name in wanted if _is_meant(name, item)] for item in items}
            items[:] = [item for item in items if meant[item]]
            for item in items:
                say({"collected": meant[item], "item": item.nodeid})

        @pytest.hookimpl(trylast=True)
        def pytest_runtest_logreport(self, report: Any) -> None:
            passed = report.passed or (report.skipped and hasattr(report, "wasxfail"))
            called, good = outcomes.get(report.nodeid, (False, True))
            outcomes[report.nodeid] = (called or report.when == "call", good and passed)
            if report.when == "teardown":
                if not _same(before) or not _known(plugins[0], plugins):
                    say({"changed": True})
                say({"ran": report.nodeid, "passed": all(outcomes[report.nodeid])})

    return Grading()


def _is_meant(name: str, item: Any) -> bool:
    """Whether a name of a row means a test: its id; an id that was cut at its first blank, as the official logs cut it;
    `test (module.Class)` of unittest; or the name of a function alone."""
    if "::" in name:
        return name in (item.nodeid, item.nodeid.split(" ")[0])
    plain = getattr(item, "originalname", None) or item.name
    if name.endswith(")") and " (" in name:
        method, _, dotted = name[:-1].partition(" (")
        owner = getattr(item, "cls", None)
        full = f"{owner.__module__}.{owner.__qualname__}" if owner is not None else ""
        dotted = dotted[: -len(method) - 1] if dotted.endswith(f".{method}") else dotted
        return bool(plain == method and full and (full == dotted or full.endswith(f".{dotted}")))
    return name in (plain, item.name)


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


def _known(manager: Any, before: list[Any]) -> bool:
    """Whether every plugin was there before, is of a package that had one there (pytest and others register more when
    they are configured), a conftest, or one that a conftest names."""
    packages = {_package(each) for each in before} - {__name__}
    now = [each for each in manager.get_plugins() if not any(each is known for known in before)]
    conftests = [each for each in now if (getattr(each, "__file__", None) or "").endswith("/conftest.py")]
    named = {name for each in conftests for name in getattr(each, "pytest_plugins", ())}
    others = [each for each in now if not any(each is known for known in conftests)]
    return all(_package(each) in packages or getattr(each, "__name__", None) in named for each in others)


def _package(plugin: Any) -> str:
    """The package that a plugin is of: a module, a class, or an object of one."""
    if isinstance(plugin, type(sys)):
        name = plugin.__name__
    else:
        name = (plugin if isinstance(plugin, type) else type(plugin)).__module__
    return name.partition(".")[0]


def _same(before: Definitions) -> bool:
    return all(
        vars(owner).get(name) is value and getattr(value, "__code__", None) is code
        for owner, name, value, code in before
    )


if __name__ == "__main__":
    main()
