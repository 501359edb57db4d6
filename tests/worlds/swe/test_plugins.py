"""Plugins of pytest: those of the interpreter are welcome, those that the actor brings are not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

import pytest

from tests.worlds.swe.world import FIXED, MEAN, OLD_TEST, Player, config_of, make_row

PLUGIN = """
class Session:
    def pytest_report_header(self):
        return "here"

def pytest_configure(config):
    config.pluginmanager.register(Session())
"""


def _repaired(environment):
    environment.reset_many([0])
    while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
        pass
    return step


def test_a_plugin_of_the_interpreter_may_register_more(tmp_path):
    """As pytest-benchmark does when it is configured."""
    home = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    (site / "tests.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    (site / "timing.py").write_text(PLUGIN)
    (site / "timing-1.dist-info").mkdir()
    (site / "timing-1.dist-info" / "METADATA").write_text("Name: timing\nVersion: 1\n")
    (site / "timing-1.dist-info" / "entry_points.txt").write_text("[pytest11]\ntiming = timing\n")
    with closing(config_of(tmp_path, sandbox="none", interpreter=str(home / "bin" / "python")).make()) as environment:
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
