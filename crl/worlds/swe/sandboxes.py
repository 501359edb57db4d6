"""The sandbox that a config names, and the two others than bubblewrap: a container per row, and none at all."""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from crl.errors import BadInput
from crl.worlds.sandbox.bubblewrap import (
    TESTBED,
    WHERE,
    Bubblewrap,
    Sandbox,
    Workspace,
    arguments,
    environment,
    give,
    users_owner,
    write_binaries,
)
from crl.worlds.sandbox.interpreters import Interpreter
from crl.worlds.sandbox.limits import Limits
from crl.worlds.sandbox.supervised import Launch, Ran, supervise
from crl.worlds.sandbox.usage import Watched
from crl.worlds.swe.settings import SweSettings

_MARK = "CRL_SWE_CALL"
_RUNTIMES = ("docker", "podman")
_SECONDS = 60


def sandbox_of(config: SweSettings, interpreter: Interpreter | None, folder: Path, hidden: Sequence[Path]) -> Sandbox:
    """The sandbox of a config. `interpreter`: of this machine; None: commands run in containers, which have their own.

    Raises BadInput where it cannot be had here.
    """
    if interpreter is None:
        return Container(config.limits, _runtime(), config.image, config.interpreter or "python")
    if config.sandbox == "none":
        return Unconfined(interpreter, config.limits, folder)
    return Bubblewrap(interpreter, config.limits, folder, hidden)


class Unconfined:
    """Commands run on this machine as they are (protocol `Sandbox`): limits hold, nothing else does.

    What a command starts is found by its environment and killed with it; what hides from that runs on.
    """

    pipes = True

    def __init__(self, interpreter: Interpreter, limits: Limits, folder: Path) -> None:
        """`folder`: for the commands `python` and `python3`."""
        self.limits, self._interpreter, self._binaries = limits, interpreter, folder / "python"
        write_binaries(self._binaries, interpreter)

    def prepare(self, tree: Path, image: str | None = None) -> Workspace:
        """A tree stays this user's."""
        return Workspace(tree, Watched(tree, self.limits), None)

    def seen(self, path: Path) -> str:
        """Paths are those of this machine."""
        return str(path)

    def run(
        self, workspace: Workspace, command: str | Sequence[str], *, longest: int, limits: Limits | None = None,
        stdin: bytes = b"", program: Path | None = None, report: tuple[int, int] | None = None,
    ) -> Ran:  # fmt: skip
        """Run a command; `/testbed` in it means the tree, and stands for the tree in what it writes."""
        mark = secrets.token_hex(16)
        env = {**environment(self._interpreter, str(workspace.tree), str(self._binaries)), _MARK: mark}
        if isinstance(command, str):
            command = command.replace(TESTBED, str(workspace.tree))
        limits = limits or self.limits
        launch = Launch(
            arguments(command, limits), env, lambda started: _marked(mark), lambda started: _kill(mark, started),
            cwd=str(workspace.tree), counted=True,
        )  # fmt: skip
        ran = supervise(launch, limits, workspace.watched, longest=longest, stdin=stdin, report=report)
        return Ran(ran.output.replace(str(workspace.tree), TESTBED), ran.code, ran.ended, ran.report)


def _marked(mark: str) -> list[int]:
    """Processes whose environment has a mark."""
    wanted, found = f"{_MARK}={mark}".encode(), []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if process.name.isdigit() and wanted in (process / "environ").read_bytes().split(b"\0"):
                found.append(int(process.name))
    return found


def _kill(mark: str, started: int) -> None:
    with suppress(OSError):
        os.killpg(started, signal.SIGKILL)
    for _ in range(100):  # one may start another while it is looked for
        marked = [pid for pid in _marked(mark) if not _is_zombie(pid)]
        if not marked:
            return
        for pid in marked:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_zombie(pid: int) -> bool:
    try:
        found = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
        return found.rsplit(")", 1)[1].split()[0] == "Z"
    except (OSError, IndexError):
        return True


class Container:
    """A container per command, of the image of its row (protocol `Sandbox`). The tree is mounted at `/testbed`."""

    pipes = False

    def __init__(self, limits: Limits, runtime: str, image: str | None, interpreter: str) -> None:
        """`image`: of rows that name none. `interpreter`: in the images; its folder comes first where it has one."""
        self.limits, self._runtime, self._image = limits, runtime, image
        folder = str(Path(interpreter).parent)
        self._first = "" if folder == "." else f"export PATH={shlex.quote(folder)}:$PATH; "

    def prepare(self, tree: Path, image: str | None = None) -> Workspace:
        """Raises BadInput where neither the row nor the config names an image."""
        image = image or self._image
        if image is None:
            raise BadInput(
                "a row names no container image",
                expected="a column image, image_name or docker_image, or environment.image",
                where=WHERE,
                next_step="name an image that has bash, Python and pytest, or set environment.sandbox: bubblewrap",
            )
        owner = users_owner()
        if owner is not None:
            give(tree, owner)
        return Workspace(tree, Watched(tree, self.limits), owner, image)

    def seen(self, path: Path) -> str:
        """`/testbed` for a tree, a workspace of its own for a program."""
        return TESTBED if path.is_dir() else f"/crl/{path.name}"

    def run(
        self, workspace: Workspace, command: str | Sequence[str], *, longest: int, limits: Limits | None = None,
        stdin: bytes = b"", program: Path | None = None, report: tuple[int, int] | None = None,
    ) -> Ran:  # fmt: skip
        """Run a command in a new container, which is removed with it."""
        limits, name = limits or self.limits, f"crl-swe-{secrets.token_hex(8)}"
        user = workspace.owner if workspace.owner is not None else os.getuid()
        shown = [] if program is None else ["--volume", f"{program}:{self.seen(program)}:ro"]
        argv = [
            self._runtime, "run", "--rm", "--name", name, "--network=none", "--interactive", "--cap-drop=ALL",
            "--security-opt=no-new-privileges", f"--memory={limits.memory_mb}m", f"--memory-swap={limits.memory_mb}m",
            f"--pids-limit={limits.processes}", f"--tmpfs=/tmp:size={limits.temporary_mb}m,mode=1777", "--read-only",
            f"--user={user}:{user}", "--env=HOME=/tmp", "--env=PYTHONDONTWRITEBYTECODE=1", "--env=PYTHONHASHSEED=0",
            "--env=LANG=C.UTF-8", f"--env=PYTHONPATH={TESTBED}:{TESTBED}/src",
            "--volume", f"{workspace.tree}:{TESTBED}",
            "--workdir", TESTBED, *shown, "--entrypoint", "/bin/bash", workspace.image or "",
            *arguments(command, limits, first=self._first)[1:],
        ]  # fmt: skip
        launch = Launch(argv, dict(os.environ), lambda started: [], lambda started: self._end(name, started))
        assert report is None, "a container is given no pipe"
        return supervise(launch, limits, workspace.watched, longest=longest, stdin=stdin)

    def _end(self, name: str, started: int) -> None:
        with suppress(OSError, subprocess.SubprocessError):
            subprocess.run([self._runtime, "kill", name], capture_output=True, timeout=_SECONDS, check=False)
        with suppress(OSError):
            os.killpg(started, signal.SIGKILL)


def _runtime() -> str:
    """The container runtime that answers. Raises BadInput where none does."""
    said = "neither docker nor podman is installed"
    for name in _RUNTIMES:
        found = shutil.which(name)
        if found is None:
            continue
        try:
            subprocess.run([found, "info"], capture_output=True, timeout=_SECONDS, check=True)
            return found
        except (OSError, subprocess.SubprocessError) as error:
            said = f"{name} does not answer: {(getattr(error, 'stderr', b'') or b'').decode(errors='replace')[-200:]}"
    raise BadInput(
        f"no container can be had here: {said.strip()}",
        expected="docker or podman, and the right to use it",
        where=WHERE,
        next_step="start it, or set environment.sandbox: bubblewrap",
    )
