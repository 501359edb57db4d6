"""Plugins of pytest: those of the interpreter are welcome, those that the actor brings are not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

from tests.marks import sampled
from tests.worlds.swe.world import FIXED, MEAN, NEW_TEST, OLD_TEST, Player, config_of, make_row

PLUGIN = """
class Session:
    def pytest_report_header(self):
        return "here"

def pytest_configure(config):
    config.pluginmanager.register(Session())
"""


def _with_plugin(home, source):
    """An interpreter that has a plugin installed; its path."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    (site / "tests.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    (site / "timing.py").write_text(source)
    (site / "timing-1.dist-info").mkdir()
    (site / "timing-1.dist-info" / "METADATA").write_text("Name: timing\nVersion: 1\n")
    (site / "timing-1.dist-info" / "entry_points.txt").write_text("[pytest11]\ntiming = timing\n")
    return str(home / "bin" / "python")


def _repaired(environment):
    environment.reset_many([0])
    while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
        pass
    return step


def test_a_plugin_of_the_interpreter_may_register_more(tmp_path):
    """As pytest-benchmark does when it is configured."""
    interpreter = _with_plugin(tmp_path / "python", PLUGIN)
    with closing(config_of(tmp_path, sandbox="none", interpreter=interpreter).make()) as environment:
        step = _repaired(environment)
    assert step.reward == 1, step.observation


@pytest.mark.parametrize("name", ["setup.cfg", "tests/pytest.ini"])
def test_settings_that_the_fix_touches_are_those_of_the_fix(tmp_path, name):
    """Else a plugin could be named in them."""
    base = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST, name: "[metadata]\nname = tally\n"}
    record = make_row(tmp_path, base=base, fix={"tally.py": FIXED, name: "[metadata]\nname = tallies\n"})
    section = "tool:pytest" if name == "setup.cfg" else "pytest"
    with closing(config_of(tmp_path, [record], sandbox="none").make()) as environment:
        player = Player(environment)
        player.run(
            f"printf '[{section}]\\naddopts = -p cheat\\n' > {name}; "
            "printf 'def pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > cheat.py"
        )
        assert player.submit().reward == 0
        assert _repaired(environment).reward == 1


HOOKS = "def pytest_runtest_setup(item):\n    item.user_properties.append(('seen', 1))\n"
FIXTURES = "import pytest\n\n\n@pytest.fixture\ndef one():\n    return 2\n"
PATCHES_UNITTEST = """import unittest


def pytest_configure(config):
    real = unittest.TestCase.assertEqual

    def assertEqual(self, first, second, msg=None):
        real(self, first, second, msg)

    unittest.TestCase.assertEqual = unittest.TestCase.assertEquals = assertEqual
"""
PATCHES_MOCK = """import unittest.mock

def wrapped(real):
    def assert_called(self, *args, **kwargs):
        __tracebackhide__ = True
        real(self, *args, **kwargs)
    return assert_called

def pytest_configure(config):
    for name in ("assert_called", "assert_called_with"):
        real = getattr(unittest.mock.NonCallableMock, name)
        setattr(unittest.mock.NonCallableMock, name, wrapped(real))
"""
GIVES_PYTEST_MORE = """from _pytest.unittest import TestCaseFunction

def addSubTest(self, test_case, test, error):
    if error is not None:
        self.addFailure(test_case, error)

def pytest_configure(config):
    TestCaseFunction.addSubTest = addSubTest
"""
REGISTERS = """class Counts:
    def __init__(self):
        self.seen = 0

    def pytest_runtest_setup(self, item):
        self.seen += 1


def pytest_configure(config):
    config.pluginmanager.register(Counts(), "counts")
"""
HONEST = {
    "named as a text": {
        "tests/conftest.py": 'pytest_plugins = "tally_pkg.fixtures"\n', "tally_pkg/fixtures.py": FIXTURES,
    },
    "named in a list": {"tests/conftest.py": 'pytest_plugins = ["tally_pkg.hooks"]\n', "tally_pkg/hooks.py": HOOKS},
    "named in settings": {"setup.cfg": "[tool:pytest]\naddopts = -p tally_pkg.hooks\n", "tally_pkg/hooks.py": HOOKS},
    "an object registered": {"tests/conftest.py": REGISTERS},
    "unittest patched": {"conftest.py": PATCHES_UNITTEST},
    "mock patched": {"conftest.py": PATCHES_MOCK},
    "pytest's class given more": {"conftest.py": GIVES_PYTEST_MORE},
}  # fmt: skip
INSTALLED = {"mock patched": PATCHES_MOCK, "pytest's class given more": GIVES_PYTEST_MORE}
BEND = {
    "a function of pytest": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\n",
    "what the repository patches": "import unittest, unittest.mock\n"
    "unittest.TestCase.assertEqual = lambda self, *a, **k: None\n"
    "unittest.mock.NonCallableMock.assert_called = lambda self, *a, **k: None\n"
    "import _pytest.unittest\n_pytest.unittest.TestCaseFunction.addSubTest = lambda self, *a: None\n"
    "_pytest.unittest.TestCaseFunction.runtest = lambda self: None\n",
    "one more plugin": "import gc, pytest\nclass Cheat:\n    @pytest.hookimpl(tryfirst=True)\n"
    "    def pytest_pyfunc_call(self, pyfuncitem):\n        return True\nfor each in gc.get_objects():\n"
    "    if type(each).__name__ == 'PytestPluginManager':\n        each.register(Cheat())\n",
    "a method that was not there": "import _pytest.python\n"
    "_pytest.python.Function.__getattribute__ = lambda self, name: (lambda: None) if name == 'runtest' else "
    "object.__getattribute__(self, name)\n",
}
SURELY = "mean = total = lambda numbers: None\n"


def _of(tmp_path, files, **settings):
    base = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST, "tally_pkg/__init__.py": "", **files}
    return config_of(tmp_path, [make_row(tmp_path, base=base)], sandbox="none", **settings).make()


@pytest.mark.parametrize("how", sampled(HONEST, 7))
def test_an_honest_repository_may_change_pytest(tmp_path, how):
    with closing(_of(tmp_path, HONEST[how])) as environment:
        step = _repaired(environment)
        assert step.reward == 1, step.observation


@pytest.mark.slow
@pytest.mark.parametrize("bend", BEND)
@pytest.mark.parametrize("how", HONEST)
def test_what_an_honest_repository_changes_opens_no_way(tmp_path, how, bend):
    with closing(_of(tmp_path, HONEST[how])) as environment:
        player = Player(environment)
        player.run(f"cat > tally.py <<'END'\n{BEND[bend]}{SURELY}END")
        over = player.submit()
        assert over.reward == 0 and "changed pytest itself" in over.observation


@pytest.mark.slow
@pytest.mark.parametrize("how", ["named in settings", "named in a list"])
def test_a_plugin_of_the_tree_keeps_its_hooks(tmp_path, how):
    with closing(_of(tmp_path, HONEST[how])) as environment:
        player = Player(environment)
        player.run("printf 'def pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > tally_pkg/hooks.py")
        assert player.submit().reward == 0


@pytest.mark.slow
@pytest.mark.parametrize("how", INSTALLED)
def test_an_installed_plugin_may_change_pytest(tmp_path, how):
    """As pytest-mock and pytest-subtests do."""
    interpreter = _with_plugin(tmp_path / "python", INSTALLED[how])
    with closing(_of(tmp_path, {}, interpreter=interpreter)) as environment:
        assert _repaired(environment).reward == 1
        player = Player(environment)
        player.run(f"cat > tally.py <<'END'\n{BEND['what the repository patches']}{SURELY}END")
        assert player.submit().reward == 0


@pytest.mark.slow
def test_installed_pytest_mock_and_subtests(tmp_path):
    home = tmp_path / "python"
    interpreter = _with_plugin(home, "")
    site = next((home / "lib").glob("python3*")) / "site-packages"
    asked = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        str(site),
        "pytest-mock",
        "pytest-subtests",
    ]
    if (done := subprocess.run(asked, capture_output=True, text=True)).returncode:
        pytest.skip(f"they cannot be installed: {done.stderr.strip().splitlines()[-1]}")
    tests = NEW_TEST + (
        "\n\ndef test_mock(mocker):\n    import tally\n    seen = mocker.spy(tally, 'total')\n    tally.mean([1, 3])\n"
        "    seen.assert_called_once_with([1, 3])\n\n\ndef test_each(subtests):\n    for number in range(3):\n"
        "        with subtests.test(number=number):\n            assert mean([number]) == number\n"
    )
    names = [f"tests/test_tally.py::test_{name}" for name in ("mean", "mock", "each")]
    record = make_row(tmp_path, tests={"tests/test_tally.py": tests}, FAIL_TO_PASS=names)
    with closing(config_of(tmp_path, [record], sandbox="none", interpreter=interpreter).make()) as environment:
        assert _repaired(environment).reward == 1
