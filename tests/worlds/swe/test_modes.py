"""What modes of files do to a grader to whom they matter, as they do to every user but root."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import sampled
from tests.worlds.swe.world import MEAN, OLD_TEST, config_of, make_row

WITHOUT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")
"""Root without the rights that overrule modes."""
PLAY = """
import json, sys
from contextlib import closing
from crl.worlds.swe import SweConfig
from tests.worlds.swe.world import Player
with closing(SweConfig(**json.loads(sys.argv[1])).make()) as environment:
    player = Player(environment)
    player.run(sys.argv[2])
    print(player.submit().reward)
"""
REMOVE = "import pathlib, sys; from crl.worlds.sandbox.workplace import remove; remove(pathlib.Path(sys.argv[1]))"
CHEAT = "printf 'def pytest_pyfunc_call(pyfuncitem):\\n    return True\\n' > conftest.py"


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("swe")
    base = {"tally.py": MEAN, "tests/test_tally.py": OLD_TEST, "pyproject.toml": "[tool.pytest.ini_options]\n"}
    return config_of(folder, [make_row(folder, base=base)], sandbox="none").model_dump()


def _run(script, *arguments):
    """What a program prints that a process runs to which modes matter."""
    before = ()
    if os.geteuid() == 0:
        if shutil.which(WITHOUT[0]) is None or subprocess.run([*WITHOUT, "true"], capture_output=True).returncode != 0:
            pytest.skip("root cannot give up its rights here (setpriv)")
        before = WITHOUT
    done = subprocess.run(
        [*before, sys.executable, "-c", script, *arguments], capture_output=True, text=True,
        cwd=Path(__file__).parents[3], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("command", sampled([CHEAT, "rm pyproject.toml"], 2))
def test_a_folder_that_cannot_be_written_to_keeps_nothing_from_the_grader(config, command):
    assert float(_run(PLAY, json.dumps(config), f"{command}; chmod 555 .")) == 0


def test_what_a_link_leads_to_keeps_its_modes(tmp_path):
    (tmp_path / "outside").mkdir(mode=0o500)
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "tree").chmod(0o555)
    _run(REMOVE, str(tmp_path / "tree" / "link"))
    assert stat.S_IMODE((tmp_path / "outside").stat().st_mode) == 0o500
    _run(REMOVE, str(tmp_path / "tree"))
    assert not (tmp_path / "tree").exists() and (tmp_path / "outside").is_dir()
