"""Verdicts that cannot be had by anything but the repair, and the forms in which rows name tests."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from contextlib import closing

import pytest

from crl.cli.doctor import experiment_findings
from crl.config.load import load_experiment
from crl.rollout.environments import step_or_error
from crl.worlds.swe.environment import ImpossibleTask
from crl.worlds.swe.grader import _messages
from tests.marks import sampled
from tests.worlds.swe.world import (
    FIXED,
    MEAN,
    NEW_TEST,
    OLD_TEST,
    Player,
    call,
    config_of,
    made,
    make_row,
    needs_bwrap,
)

pytestmark = needs_bwrap
ALL_PASS = "def test_total(): pass\ndef test_mean(): pass\ndef test_none(): pass\n"
HOOK = """
import pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    return True
"""


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    with closing(made(config_of(tmp_path_factory.mktemp("swe")))) as environment:
        yield environment


def _graded(environment, files=None, command="true"):
    player = Player(environment)
    for name, text in (files or {}).items():
        player.run(f"mkdir -p $(dirname {name}); cat > {name} <<'END'\n{textwrap.dedent(text)}\nEND")
    player.run(command)
    return player.submit()


CHEATS = {
    "its own tests": {"tests/test_tally.py": ALL_PASS},
    "a conftest": {"conftest.py": HOOK},
    "a conftest beside the tests": {"tests/conftest.py": HOOK},
    "a pytest of its own": {"pytest.py": "def main(*a, **k): return 0\nclass ExitCode: USAGE_ERROR = 4\n"},
    "a _pytest of its own": {"_pytest/__init__.py": "raise SystemExit(0)", "pluggy/__init__.py": "raise SystemExit(0)"},
    "settings": {"pytest.ini": "[pytest]\npython_functions = nothing\naddopts = -p cheat\n", "cheat.py": HOOK},
    "settings of a project": {"pyproject.toml": '[tool.pytest.ini_options]\naddopts = "-p cheat"\n', "cheat.py": HOOK},
    "a sitecustomize": {"sitecustomize.py": "import os\nos._exit(0)\n"},
    "a plugin by metadata": {
        "cheat.py": HOOK, "cheat-1.egg-info/entry_points.txt": "[pytest11]\ncheat = cheat\n",
        "cheat-1.egg-info/PKG-INFO": "Name: cheat\nVersion: 1\n",
    },
    "a function of pytest replaced": {
        "tally.py": "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\nmean = total = None\n"
    },
    "the code of a function replaced": {
        "tally.py": "import _pytest.python\n_pytest.python.Function.runtest.__code__ = (lambda self: None).__code__\n"
                    "mean = total = None\n"
    },
    "a plugin registered": {
        "tally.py": """\
            import gc, pytest
            class Cheat:
                @pytest.hookimpl(tryfirst=True)
                def pytest_pyfunc_call(self, pyfuncitem):
                    return True
            for each in gc.get_objects():
                if type(each).__name__ == "PytestPluginManager":
                    each.register(Cheat())
            mean = total = None
            """
    },
    "a plugin registered that is of a class of Python's": {
        "tally.py": """\
            import gc, types
            for each in gc.get_objects():
                if type(each).__name__ == "PytestPluginManager":
                    each.register(types.SimpleNamespace(pytest_pyfunc_call=lambda pyfuncitem: True))
            mean = total = None
            """
    },
    "an early end": {"tally.py": "import os\nos._exit(0)\n"},
    "an end in a test": {"tally.py": "import os\ndef mean(numbers):\n    os._exit(0)\ntotal = sum\n"},
    "results on every descriptor": {
        "tally.py": """\
            import json, os
            for name in [f"tests/test_tally.py::test_{name}" for name in ("mean", "none", "total")]:
                for number in range(3, 64):
                    for each in ({"collected": [name], "item": name}, {"ran": name, "passed": True}, {"end": 0}):
                        try:
                            os.write(number, b"0" * 64 + b" " + json.dumps([1, each]).encode() + b"\\n")
                        except OSError:
                            pass
            print("3 passed in 0.01s")
            os._exit(0)
            """
    },
    "all of it skipped": {"tally.py": "import pytest\npytest.skip(allow_module_level=True)\n"},
}  # fmt: skip


QUICK = ("its own tests", "a conftest", "a function of pytest replaced", "results on every descriptor")
"""Cheats that are tried every time; the others at length."""


@pytest.mark.parametrize(
    "cheat", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in CHEATS]
)
def test_a_cheat_is_worth_nothing(environment, cheat):
    over = _graded(environment, CHEATS[cheat])
    assert over.done and over.reward == 0 and not over.success


def test_a_cheat_beside_the_repair_does_no_harm(environment):
    files = {**CHEATS["its own tests"], **CHEATS["settings"], "tally.py": FIXED, "tests/helper.py": "x = 1\n"}
    assert _graded(environment, files).reward == 1


LONGER = (
    "rm -rf tests; mkdir other; ln -s other tests; printf 'def test_mean(): pass\\n' > other/test_tally.py",
    "mkdir tests/__pycache__; for v in 11 12; do cp /bin/true tests/__pycache__/test_tally.cpython-3$v.pyc; done",
    "rm -rf .git tests README.md; mkfifo tests",
    "chmod -R 000 tests",
)


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf tests; ln -s /tmp tests",
        *(pytest.param(each, marks=pytest.mark.slow) for each in LONGER),
    ],
)
def test_what_was_done_to_the_tests_is_undone(environment, command):
    assert _graded(environment, {"tally.py": FIXED}, command).reward == 1


@pytest.mark.slow
def test_a_tree_that_hangs_the_tests_is_given_up(environment):
    grader = environment._grader
    short = grader.limits.model_copy(update={"seconds": 2.0})
    object.__setattr__(grader, "limits", short)
    try:
        over = _graded(environment, {"tally.py": "while True: pass"})
    finally:
        object.__setattr__(grader, "limits", environment.config.test_limits)
    assert over.reward == 0 and "ran too long" in over.observation


@pytest.mark.slow
def test_a_tree_that_is_too_deep_is_a_failure(environment):
    over = _graded(environment, {"tally.py": FIXED}, "mkdir -p $(printf 'd/%.0s' $(seq 1200))")
    assert over.done and over.reward == 0 and "folders are too deep" in over.observation


def test_no_message_counts_without_the_secret():
    assert _messages(b"0" * 64 + b' [0, {"end": 0}]\n\nnonsense\n', b"secret") == []


UNITTEST = """import unittest
from tally import mean


class Means(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(mean([1, 3]), 2)

    def test_none(self):
        self.assertEqual(mean([]), 0)
"""
PARAMETERS = """import pytest
from tally import mean, total


@pytest.mark.parametrize("numbers", [[1, 3], [2, 2]], ids=["one - three", "twos"])
def test_mean(numbers):
    assert mean(numbers) == 2


@pytest.mark.xfail
def test_expected():
    assert total([1]) == 2


@pytest.mark.skip
def test_skipped():
    pass
"""


@pytest.mark.parametrize(
    ("test", "names", "worth"),
    [
        (UNITTEST, ["test_mean (tests.test_tally.Means)", "test_none (tests.test_tally.Means.test_none)"], 1),
        (PARAMETERS, ["tests/test_tally.py::test_mean[one", "test_mean", "tests/test_tally.py::test_expected"], 1),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in (
                (UNITTEST, ["test_mean (tests.test_tally.Others)"], None),
                (UNITTEST, ["tests/test_tally.py::Means::test_mean"], 1),
                (NEW_TEST, ["test_mean", "test_none"], 1),
                (
                    PARAMETERS,
                    ["tests/test_tally.py::test_mean[one - three]", "tests/test_tally.py::test_mean[twos]"],
                    1,
                ),
                (PARAMETERS, ["tests/test_tally.py::test_skipped"], 0),
                (PARAMETERS, ["tests/test_tally.py::test_mean[threes]"], None),
                (NEW_TEST, ["tests/test_gone.py::test_mean"], None),
            )
        ),
    ],
)
def test_names_of_tests(tmp_path, test, names, worth):
    files = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST, "tests/__init__.py": ""}
    record = make_row(tmp_path, base=files, tests={"tests/test_tally.py": test}, FAIL_TO_PASS=names, PASS_TO_PASS=[])
    with closing(made(config_of(tmp_path, [record]))) as environment:
        environment.reset_many([0])
        try:
            while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
                pass
        except ImpossibleTask as impossible:
            assert worth is None and "not collected, such as" in str(impossible)
        else:
            assert step.reward == worth


def test_a_package_in_src_with_settings_of_its_own(tmp_path):
    """Options for a plugin that is not here, a marker, and a conftest that imports the package."""
    files = {
        "src/tally/__init__.py": MEAN, "tests/conftest.py": "import tally\n", "tests/test_tally.py": OLD_TEST,
        "setup.cfg": "[tool:pytest]\naddopts = --cov=tally\ntestpaths = tests\n",
    }  # fmt: skip
    record = make_row(tmp_path, base=files, fix={"src/tally/__init__.py": FIXED})
    with closing(made(config_of(tmp_path, [record]))) as environment:
        player = Player(environment)
        assert (
            player.run("python -c 'import tally; print(tally.__file__)'").observation
            == "/testbed/src/tally/__init__.py"
        )
        environment.reset_many([0])
        while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
            pass
    assert step.reward == 1, step.observation


SURROUNDINGS = """import os
import sys


def test_total():
    assert (sys.flags.hash_randomization, sys.flags.no_user_site) == (0, 1)
    assert not [each for each in sys.path if os.path.exists(os.path.join(each, "grading.py"))]
    assert sys.path.count(os.getcwd()) == sys.path.count(os.path.join(os.getcwd(), "src")) == 1
"""


@pytest.mark.parametrize("sandbox", ["bubblewrap", "none"])
def test_equal_trees_are_judged_by_equal_hashes(tmp_path, sandbox):
    """And with no folder on the path but the tree's and the interpreter's."""
    record = make_row(tmp_path, tests={"tests/test_tally.py": SURROUNDINGS}, FAIL_TO_PASS=["test_total"])
    with closing(made(config_of(tmp_path, [record], sandbox=sandbox))) as environment:
        assert Player(environment).submit().reward == 1


def test_the_oracle_can_do_what_a_diff_can(tmp_path):
    """New, removed, moved and empty files, two that are no text, one of them longer than a command may be, one without
    a line break at its end."""
    numbers = "".join(f"line {number % 7}\n" for number in range(60))
    base = {
        "tally.py": MEAN,
        "old name.py": "x = 1\n" * 9,
        "gone.py": "",
        "numbers.txt": numbers,
        "tests/test_tally.py": OLD_TEST,
    }
    changed = numbers.replace("line 3\n", "line three\n", 1)[:-1] + "\nline 2\nend"
    fix = {"tally.py": FIXED, "old name.py": None, "new/name.py": "x = 1\n" * 9, "gone.py": None, "empty.py": "",
           "numbers.txt": "first\n" + changed, "odd'name.txt": "\0binary \u2028 ü\r\n",
           "large.bin": "\0" + 150_000 * "é"}  # fmt: skip
    with closing(made(config_of(tmp_path, [make_row(tmp_path, base=base, fix=fix)]))) as environment:
        environment.reset_many([0])
        fixed = environment.repositories.fixed(environment.tasks.of(0))
        while "submit" not in (action := environment.oracle(0)):
            assert not environment.step_many({0: action})[0].observation.startswith("Error")
        tree = environment._slots[0].workspace.tree
        for name in fix:
            assert os.path.lexists(tree / name) == os.path.lexists(fixed / name)
            assert not (fixed / name).exists() or (tree / name).read_bytes() == (fixed / name).read_bytes()
        assert environment.step_many({0: action})[0].reward == 1


def _described(test):
    return test.replace("    def test_mean(self):\n", '    def test_mean(self):\n        """Means, as they are."""\n')


NO_PACKAGE = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST}
SUBFOLDER = {"tally.py": MEAN, "tests/deep/test_tally.py": OLD_TEST}
LETTERS = PARAMETERS.replace('ids=["one - three", "twos"]', 'ids=["für", "twos"]')
CHANGED_NAMES = [
    (NO_PACKAGE, NEW_TEST, ["tests/test_tally.py::test_mean ", " tests/test_tally.py::test_none\n"]),
    (NO_PACKAGE, NEW_TEST, ["./tests/test_tally.py::test_mean"]),
    (NO_PACKAGE, LETTERS, ["tests/test_tally.py::test_mean[für]"]),
    (NO_PACKAGE, LETTERS, ["tests/test_tally.py::test_mean[f\\xfcr]"]),
    (NO_PACKAGE, PARAMETERS, ["tests/test_tally.py::test_mean[one - th"]),
    (NO_PACKAGE, _described(UNITTEST), ["Means, as they are."]),
    (NO_PACKAGE, UNITTEST, ["test_mean (tests.test_tally.Means)"]),
    (NO_PACKAGE, UNITTEST, ["test_mean (test_tally.Means.test_mean)"]),
    (SUBFOLDER, UNITTEST, ["test_mean (deep.test_tally.Means)"]),
]
"""The repository, its tests, and names as logs of test runners have them."""


@pytest.mark.parametrize(("base", "test", "names"), sampled(CHANGED_NAMES, 9))
def test_names_that_a_log_changed(tmp_path, base, test, names):
    path = next(name for name in base if name.endswith("test_tally.py"))
    record = make_row(tmp_path, base=base, tests={path: test}, FAIL_TO_PASS=names, PASS_TO_PASS=[])
    with closing(config_of(tmp_path, [record], sandbox="none").make()) as environment:
        assert list(environment.proofs()) == [("tally-1", "")]
        assert _graded(environment).reward == 0, "what is not repaired is not repaired by a name"


@pytest.mark.slow
def test_a_name_of_a_class_finds_its_file(tmp_path):
    """Also where the tests of the row do not touch it."""
    base = {**NO_PACKAGE, "tests/deep/test_other.py": UNITTEST, "tests/other.py": ""}
    record = make_row(tmp_path, base=base, PASS_TO_PASS=[], FAIL_TO_PASS=["test_mean (deep.test_other.Means)"])
    with closing(config_of(tmp_path, [record], sandbox="none").make()) as environment:
        assert list(environment.proofs()) == [("tally-1", "")]


IMPOSSIBLE = [
    ({"FAIL_TO_PASS": ["tests/test_tally.py::test_gone"]}, "1 of 2 named tests are not collected, such as"),
    ({"FAIL_TO_PASS": ["test_mean (tests.test_tally.Nobody)"]}, "not collected"),
    ({"fix": {"README.md": "Nothing.\n"}}, "1 of 3 named tests fail with the reference fix"),
    ({"fix": {"tally.py": "import os\nos._exit(0)\n"}}, "with the reference fix, the tested code ended the tests"),
]


@pytest.mark.parametrize(("change", "said"), sampled(IMPOSSIBLE, 4))
def test_a_task_that_nobody_can_win_is_named_with_what_pytest_says(tmp_path, change, said):
    record = make_row(tmp_path, **change)
    with closing(config_of(tmp_path, [record, make_row(tmp_path, "tally-2")], sandbox="none").make()) as environment:
        (one, fault), (other, none) = environment.proofs()
        assert (one, other, none) == ("tally-1", "tally-2", "") and said in fault and "pytest says" in fault
        if "collected" in said:  # no failure of the actor
            player = Player(environment)
            player.run("true")
            step = step_or_error(environment, {0: call("submit")})[0]
            assert (step.done, step.reward, step.error) == (True, 0, "environment_impossible_task")
            assert "not collected" in step.details and not list(environment._workplace.folder.glob("tree-*"))


@pytest.mark.slow
def test_doctor_says_how_many_tasks_can_be_won(tmp_path):
    records = [make_row(tmp_path, FAIL_TO_PASS=["tests/test_tally.py::test_gone"]), make_row(tmp_path, "tally-2")]
    config = config_of(tmp_path, [*records, make_row(tmp_path, "tally-3")], sandbox="none")
    seeds = {"train_seeds": {"start": 0, "count": 3}, "evaluation_seeds": {"start": 10, "count": 2}}
    family = {"name": "repairs", "environment": config.model_dump(mode="json"), "groups": 1, **seeds}
    tiny = load_experiment("conf/tiny.yaml", {"method.families": [family], "method.prompts": "swe"})

    def said():
        return {each.name: each for each in experiment_findings(tiny, 1)}["tasks of family repairs"]

    assert (said().ok, said().result) == (False, "0 of 3 cannot be won; 3 were never tried")
    with closing(config.make()) as environment:
        proofs = environment.proofs()
        next(proofs)
        assert said().result == "1 of 3 cannot be won; 2 were never tried"
        assert [fault == "" for _, fault in proofs] == [True, True]
    assert said().result == "1 of 3 cannot be won; 0 were never tried"


@pytest.mark.slow
def test_a_busy_machine_does_not_cost_a_right_repair(tmp_path):
    test = (
        NEW_TEST
        + "\n\ndef test_long():\n    import time\n    end = time.process_time() + 2.5\n"
        + ("    while time.process_time() < end:\n        pass\n")
    )
    record = make_row(tmp_path, tests={"tests/test_tally.py": test}, FAIL_TO_PASS=["test_mean", "test_long"])
    config = config_of(tmp_path, [record], sandbox="none", test_limits={"seconds": 5})
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(6 * (os.cpu_count() or 1))]
    try:
        with closing(config.make()) as environment:
            began = time.monotonic()
            assert _graded(environment, {"tally.py": FIXED}).reward == 1
            assert time.monotonic() - began > 5, "the machine was busy"
            over = _graded(environment, {"tally.py": "import time\ntime.sleep(10_000)\n"})
            assert over.reward == 0 and "ran too long" in over.observation
    finally:
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.slow
@pytest.mark.parametrize("finder", [False, True])
def test_the_tree_comes_before_an_installation_of_it(tmp_path, finder):
    """An editable one, of a project whose packages are in a folder of another name."""
    home, project = tmp_path / "python", tmp_path / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    (project / "lib/tally").mkdir(parents=True)
    (project / "setup.py").write_text("")
    (project / "lib/tally/__init__.py").write_text(MEAN.replace("+ 1", "+ 2"))
    line = str(project / "lib")
    if finder:
        line = "import __editable___tally_finder"
        finds = "import sys\nfrom importlib.util import spec_from_file_location\nclass Finder:\n"
        finds += "    @staticmethod\n    def find_spec(name, path=None, target=None):\n        if name in MAPPING:\n"
        finds += "            return spec_from_file_location(name, MAPPING[name] + '/__init__.py')\n"
        finds += f"MAPPING = {{'tally': {str(project / 'lib/tally')!r}}}\nsys.meta_path.append(Finder)\n"
        (site / "__editable___tally_finder.py").write_text(finds)
    (site / "tests.pth").write_text("\n".join([line, *(each for each in sys.path if each.endswith("site-packages"))]))
    base = {"lib/tally/__init__.py": MEAN, "tests/test_tally.py": OLD_TEST}
    record = make_row(tmp_path, base=base, fix={"lib/tally/__init__.py": FIXED})
    python = str(home / "bin" / "python")
    with closing(config_of(tmp_path, [record], sandbox="none", interpreter=python).make()) as environment:
        player = Player(environment)
        asked = player.run("python -c 'import tally; print(tally.__file__)'")
        assert asked.observation == "/testbed/lib/tally/__init__.py"
        assert list(environment.proofs()) == [("tally-1", "")]
