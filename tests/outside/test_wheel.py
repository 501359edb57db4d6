"""The wheel as a stranger installs it: an empty folder, an empty home, and no checkout anywhere near.

What the project needs of other packages comes from the environment that runs the tests: installing that takes minutes
and gigabytes. The project's own files come from the wheel alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import PATIENCE_SECONDS, client_of, free_port, wait_until
from tests.tiny_run import ROOT

pytestmark = pytest.mark.slow

SHIPPED = ("conf", "data", "prefect.yaml")
TREE = ("crl", "flows", "tasks", *SHIPPED, "pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE")
PAGE = (ROOT / "docs/install.md").read_text(encoding="utf-8")
BEGIN = [shlex.split(line)[1:] for line in PAGE.partition("## Begin")[2].split("```")[1].splitlines()[1:]]
"""The commands that docs/install.md begins with."""


class Installed:
    """An environment that has the wheel, and a folder and a home that are empty."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bin = folder / "work", folder / "environment" / "bin"
        self.environment = {
            "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        for path in (self.folder, folder / "home"):
            path.mkdir()

    def crl(self, *words: str) -> str:
        """Run `crl …` to its end; what it printed."""
        return self.run(str(self.bin / "crl"), *words)

    def run(self, *words: str) -> str:
        done = subprocess.run(
            words, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )  # fmt: skip
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return done.stdout

    @contextlib.contextmanager
    def ui(self) -> Iterator[str]:
        """The address of Prefect's server while `crl ui` runs. It ends by Ctrl-C, and must end well."""
        port = _two_ports()
        screen = self.folder.parent / "screen.txt"
        with screen.open("wb") as output:
            process = subprocess.Popen(
                [self.bin / "crl", "ui", "--port", str(port)], cwd=self.folder, env=self.environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
            )  # fmt: skip
        try:
            wait_until(lambda: "Ready after" in screen.read_text() or process.poll() is not None, screen.read_text)
            assert process.poll() is None, screen.read_text()
            yield f"http://127.0.0.1:{port}"
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(PATIENCE_SECONDS) == 0, screen.read_text()
        finally:
            process.kill()  # its guardian ends the rest


def _two_ports() -> int:
    while True:
        port = free_port()
        with socket.socket() as following, contextlib.suppress(OSError):
            following.bind(("127.0.0.1", port + 1))
            return port


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy of the tree: a build writes into it."""
    folder = tmp_path_factory.mktemp("wheel")
    (folder / "tree").mkdir()
    for name in (
        "crl",
        "flows",
        "tasks",
        *SHIPPED,
        "pyproject.toml",
        "setup.py",
        "MANIFEST.in",
        "README.md",
        "LICENSE",
    ):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / "tree" / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / "tree" / name)
    pip = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "-w", folder, folder / "tree"], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("stranger")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "environment"], check=True)
    python = folder / "environment" / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index"]
    alone = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}  # it may lead to a checkout
    subprocess.run([*pip, "--disable-pip-version-check", wheel], check=True, env=alone)
    (site,) = (folder / "environment" / "lib").glob("*/site-packages")
    # Only the folder itself: the .pth files in it, such as that of an editable install of this project, do not count.
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return Installed(folder)


def test_everything_that_it_runs_comes_from_the_wheel(installed: Installed) -> None:
    program = (
        "import json, crl, flows, tasks; from crl.paths import shipped; from crl.worlds.swe.library import libraries;"
        "from crl.worlds.hotpotqa.files import own_questions;"
        "print(json.dumps([crl.__file__, flows.__file__, tasks.__file__, str(shipped())]));"
        "print(len(libraries()), len(own_questions('train')) > 0)"
    )
    said = installed.run(str(installed.bin / "python"), "-P", "-c", program).splitlines()
    own = installed.bin.parent
    assert all(Path(each).is_relative_to(own) for each in json.loads(said[0])), said[0]
    assert said[1] == f"{len(list((ROOT / 'data/swe/libraries').iterdir()))} True"
    shipped = Path(json.loads(said[0])[3])
    for name in SHIPPED:
        wanted = [path for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
        for path in (each for each in wanted if "__pycache__" not in each.parts):
            assert (shipped / path.relative_to(ROOT)).read_bytes() == path.read_bytes(), path


def test_a_stranger_trains_queries_and_takes_the_agent_away(installed: Installed) -> None:
    assert installed.crl("--version").startswith("crl ")
    assert "there are no runs" in installed.crl("list")
    assert "wrote quickstart.yaml" in installed.crl("init")
    assert "quickstart" in installed.crl("list", "--experiments") and "ready" in installed.crl("doctor", "erl_tiny")
    said = {words[0]: installed.crl(*words) for words in BEGIN}
    assert "wrote prompts/tiny.yaml\nwrote tiny.yaml" in said["init"] and "ready" in said["doctor"]
    assert "tiny" in said["list"] and "with_bank" in said["sql"]
    assert list((installed.folder / "agent").rglob("*.safetensors"))
    assert (installed.folder / "runs" / "tiny" / "report.html").is_file()

    with installed.ui() as url, client_of(url) as http:
        deployment = http.get("/deployments/name/train/train").json()
        offered = deployment["parameter_openapi_schema"]["properties"]["experiment"]["anyOf"][0]["enum"]
        assert offered[:2] == ["quickstart.yaml", "tiny.yaml"] and "conf/erl_tiny.yaml" in offered
        filled = {"experiment": "tiny.yaml", "rounds": 1, "settings": {"name": "from-the-form"}}
        run = http.post(f"/deployments/{deployment['id']}/create_flow_run", json={"parameters": filled}).json()["id"]
        state = lambda: http.get(f"/flow_runs/{run}").json()["state"]  # noqa: E731
        wait_until(lambda: state()["type"] in ("COMPLETED", "FAILED", "CRASHED"), lambda: str(state()))
        assert state()["type"] == "COMPLETED", state()

    listed = {each["name"]: each for each in json.loads(installed.crl("list", "--json"))}
    assert {name: (each["state"], each["rounds"]) for name, each in listed.items()} == {
        "tiny": ("complete", 1), "from-the-form": ("complete", 1),
    }  # fmt: skip
    assert 0 <= listed["tiny"]["with_bank"] <= 1
