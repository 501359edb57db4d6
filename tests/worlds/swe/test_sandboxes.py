"""Sandboxes other than bubblewrap, and what is refused where there is none."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from contextlib import closing

import pytest

from crl.errors import BadInput
from crl.worlds.sandbox import bubblewrap as sandbox
from crl.worlds.sandbox.interpreters import Interpreter, interpreter_of
from crl.worlds.sandbox.limits import Limits
from crl.worlds.sandbox.supervised import Output
from crl.worlds.sandbox.usage import Watched
from crl.worlds.swe import sandboxes
from tests.worlds.swe.world import FIXED, Player, config_of, files_below, made, make_row, needs_bwrap, processes

FAKE = """#!{python}
# A container runtime that runs commands here, in the tree that it is told to mount.
import os, sys, tempfile
if sys.argv[1] == "info":
    sys.exit(0)
if sys.argv[1] == "kill":
    sys.exit(1)
words = sys.argv[2:]
volumes = dict(reversed(each.split(":")[:2]) for name, each in zip(words, words[1:]) if name == "--volume")
at = words.index("--entrypoint")
assert words[at + 2] == "an/image:1" and "--network=none" in words and "--cap-drop=ALL" in words
os.chdir(volumes["/testbed"])
given = [volumes.get(word, word).replace("/testbed", volumes["/testbed"]) for word in words[at + 3 :]]
told = tempfile.TemporaryFile()
told.write(sys.stdin.buffer.read().replace(b"/testbed", volumes["/testbed"].encode()))
told.seek(0)
os.dup2(told.fileno(), 0)
os.execv("/bin/bash", ["/bin/bash", *given])
"""


def _repaired(environment):
    player = Player(environment)
    player.run(f"cat > tally.py <<'END'\n{FIXED}\nEND")
    return player.submit()


@pytest.fixture
def runtime(tmp_path, monkeypatch):
    """A stand-in for docker, first on the path."""
    binaries = tmp_path / "binaries"
    binaries.mkdir()
    (binaries / "docker").write_text(FAKE.format(python=sys.executable))
    (binaries / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{binaries}{os.pathsep}{os.environ['PATH']}")
    return binaries / "docker"


@pytest.mark.slow
def test_without_a_sandbox_the_same_episode_can_be_had(tmp_path):
    with closing(config_of(tmp_path, sandbox="none", limits={"seconds": 2.0}).make()) as environment:
        player = Player(environment)
        short = environment._sandbox.limits
        environment._sandbox.limits = unhurried = short.model_copy(update={"seconds": 120.0})
        assert player.run("pwd; ls /testbed").observation == "/testbed\nREADME.md\ntally.py\ntests"
        environment._sandbox.limits = short
        ended = player.run("setsid sleep 9876 & (sleep 9876 &); sleep 9876").observation
        environment._sandbox.limits = unhurried
        assert "it ran longer than 2 seconds" in ended
        player.run("setsid sleep 9876 & disown; echo left")
        assert not any("sleep 9876" in each for each in processes())
        assert "MemoryError" in player.run("python -c 'bytearray(3 << 30)'").observation
        assert _repaired(environment).reward == 1
        folder = environment._workplace.folder
    assert not folder.exists()


def test_processes_are_counted_without_those_of_the_user_elsewhere(tmp_path):
    """A limit of the kernel would count every thread of the user, and let no command start beside many of them."""
    with closing(config_of(tmp_path, sandbox="none", limits={"processes": 8}).make()) as environment:
        player = Player(environment)
        assert player.run("ulimit -u").observation == str(resource.getrlimit(resource.RLIMIT_NPROC)[0]).replace(
            str(resource.RLIM_INFINITY), "unlimited"
        )
        assert "more than 8 processes" in player.run("for i in $(seq 12); do sleep 5678 & done; wait").observation
        assert not any("sleep 5678" in each for each in processes())


def test_no_bubblewrap_is_refused_with_a_way_out(tmp_path, monkeypatch):
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="bubblewrap is not installed") as refused:
        config_of(tmp_path).make()
    assert "apt install bubblewrap" in str(refused.value) and "sandbox: none" in str(refused.value)


@pytest.mark.parametrize("said", ["No permissions to create new namespace", "Unknown option --disable-userns"])
def test_a_system_without_namespaces_or_with_an_old_bubblewrap_is_refused(tmp_path, monkeypatch, said):
    broken = tmp_path / "bwrap"
    broken.write_text(f"#!/bin/sh\necho 'bwrap: {said}' >&2\nexit 1\n")
    broken.chmod(0o755)
    tmp_path.chmod(0o755)
    find = shutil.which
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: str(broken) if name == "bwrap" else find(name))
    with pytest.raises(BadInput, match="no sandbox can be had here") as refused:
        config_of(tmp_path).make()
    assert "unprivileged_userns_clone" in str(refused.value) and "0.8 or later" in str(refused.value)


def test_no_container_runtime_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(sandboxes.shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match="neither docker nor podman"):
        config_of(tmp_path, sandbox="container").make()


@pytest.mark.slow
def test_a_container_per_command_is_told_what_it_needs(tmp_path, runtime):
    """The commands reach a stand-in for docker; that a container keeps them in, docker says."""
    record = make_row(tmp_path, image_name="an/image:1")
    with closing(config_of(tmp_path, [record], sandbox="container", interpreter=sys.executable).make()) as environment:
        seen = Player(environment).run("echo here; ls tests; exit 4").observation
        assert seen == "here\ntest_tally.py\n[Exit code: 4]"
        assert _repaired(environment).reward == 1
        player = Player(environment)
        assert "1 of 1 pass" in player.submit().observation


def test_a_row_without_an_image_is_refused(tmp_path, runtime):
    with closing(config_of(tmp_path, sandbox="container").make()) as environment:
        player = Player(environment)
        with pytest.raises(BadInput, match="names no container image"):
            player.run("true")


@pytest.mark.skipif(
    shutil.which("docker") is None or subprocess.run(["docker", "info"], capture_output=True).returncode != 0,
    reason="no container runtime answers",
)
def test_a_real_container(tmp_path):
    image = os.environ.get("CRL_SWE_TEST_IMAGE")
    if image is None:
        pytest.skip("CRL_SWE_TEST_IMAGE names no image with bash, Python and pytest")
    with closing(config_of(tmp_path, sandbox="container", image=image).make()) as environment:
        assert "Network is unreachable" in Player(environment).run(
            "python -c 'import socket; socket.create_connection((\"1.1.1.1\", 53), 2)'"
        ).observation  # fmt: skip
        assert _repaired(environment).reward == 1


@needs_bwrap
def test_an_interpreter_of_its_own_is_what_runs_and_judges(tmp_path):
    """A virtual environment with a package that the repository needs, and that nothing else has."""
    home = tmp_path / "python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    site = next((home / "lib").glob("python3*")) / "site-packages"
    (site / "needed.py").write_text("def half(total, count):\n    return total / count if count else 0\n")
    for path in (each for each in sys.path if each.endswith("site-packages")):
        with (site / "tests.pth").open("a") as file:
            file.write(f"{path}\n")
    for folder in (tmp_path, home):
        folder.chmod(0o755)
    repaired = f"{FIXED}\n\nfrom needed import half  # noqa\n"
    record = make_row(tmp_path, fix={"tally.py": repaired})
    python = str(home / "bin" / "python")
    with closing(made(config_of(tmp_path, [record], interpreter=python, plugins=False))) as environment:
        player = Player(environment)
        assert player.run("python -c 'import needed; print(needed.half(6, 3))'").observation == "2.0"
        environment.reset_many([0])
        while not (step := environment.step_many({0: environment.oracle(0)})[0]).done:
            pass
    assert step.reward == 1


def test_an_interpreter_that_cannot_be_used_is_refused(tmp_path):
    plain = tmp_path / "plain"
    plain.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    plain.chmod(plain.stat().st_mode | stat.S_IXUSR)
    with pytest.raises(BadInput, match="no pytest"):
        interpreter_of(str(plain))
    with pytest.raises(BadInput, match="cannot be run"):
        interpreter_of(str(tmp_path / "gone"))


def test_an_interpreter_below_opt_is_not_covered(tmp_path, monkeypatch):
    """By the commands `python` and `python3`, which are mounted after it."""
    monkeypatch.setattr(sandbox.shutil, "which", str)
    monkeypatch.setattr(sandbox, "open_to_all", lambda folder: True)
    monkeypatch.setattr(sandbox.Bubblewrap, "_try", lambda self, folder, needs: None)
    python = Interpreter("/opt/python/bin/python", ("/opt/python",), (3, 11))
    workspace = sandbox.Workspace(tmp_path, Watched(tmp_path, Limits()), None)
    words, _, _ = sandbox.Bubblewrap(python, Limits(), tmp_path, []).launched(workspace, ["true"], {})
    assert words.count("/opt/python") == 2, "from there, to there"


@needs_bwrap
def test_closing_leaves_nothing(tmp_path):
    config = config_of(tmp_path)
    environment = made(config)
    environment.reset_many([0, 0])
    environment.step_many({0: '{"name": "execute_bash", "arguments": {"command": "echo > x"}}'})
    folder = environment._workplace.folder
    assert any(each.endswith("x") for each in files_below(folder))
    environment.close()
    assert not folder.exists()


@pytest.mark.parametrize(("pieces", "longest"), [(1, 100), (3, 100), (5000, 100), (40, 1000)])
def test_output_is_kept_in_bounded_memory(pieces, longest):
    output = Output(longest)
    for number in range(pieces):
        output.add(f"{number:09d}\n".encode())
    whole = "".join(f"{number:09d}\n" for number in range(pieces))
    text = output.text()
    assert text == whole if len(whole) <= longest else (
        text.startswith(whole[: longest // 2]) and text.endswith(whole[-longest // 2 :]) and "left out" in text
    )  # fmt: skip
    assert len(text) < longest + 60 and len(output._head) + output._tail_bytes <= 12 * longest
