"""Plugins of pytest: those of the interpreter are welcome, those that the actor brings are not."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing

from tests.unit.envs.swe.world import config_of

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
