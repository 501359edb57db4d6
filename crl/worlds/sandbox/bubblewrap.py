"""Where commands of an actor run: a sandbox of bubblewrap, new for each command.

It has no network and no other process; the system and the interpreter can be read; the work tree, at `/testbed`, is all
that can be written, beside a `/tmp` of limited size that is new each time. The user is nobody's: where this process is
root's, a user of the machine that owns nothing but the tree. With the command its process namespace ends, so nothing
runs on; it ends with our process too, even where that is killed.

What no limit of a process can say (memory of them all, size of the tree, output) `supervised` watches. Memory that
belongs to no process (`memfd_create`, System V segments) has no limit beyond the size of a file.
"""

from __future__ import annotations

import json
import os
import secrets
import select
import shlex
import shutil
import signal
import stat
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from crl.errors import BadInput
from crl.worlds.sandbox.interpreters import Interpreter
from crl.worlds.sandbox.limits import MEGABYTE, Limits
from crl.worlds.sandbox.supervised import Launch, Ran, supervise
from crl.worlds.sandbox.usage import Watched

TESTBED = "/testbed"
"""Where a work tree is, in the sandbox."""
_BESIDE = "/crl"
"""Where the commands of Python and programs are, in the sandbox: no interpreter is installed there."""
_SETTINGS = "method.families[].environment"
WHERE = f"{_SETTINGS}.sandbox"
_SYSTEM = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_ETC = ("ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives", "localtime")
_USERS = {"passwd": "root:x:0:0::/root:/bin/sh\nactor:x:1000:1000::/tmp:/bin/bash\n", "group": "actor:x:1000:\n",
          "hosts": "127.0.0.1 localhost\n"}  # fmt: skip
_FIRST_USER = 0x7000_0000
"""Users that only trees belong to, where this process is root's: from here on, drawn at random, so that the limit on
processes of one episode does not count those of another."""
_SAYS = 60.0
"""Seconds until bubblewrap has said which process is the first."""
# Bash is the first process, which no signal from inside ends; with it everything ends. What it says of a shell that was
# killed is not the command's output.
_SHELL = 'ulimit {limits}; exec 3>&2 2>/dev/null; (exec 2>&3 3>&-; eval "$1"); exit $?'
_PROGRAM = 'ulimit {limits}; exec 3>&2 2>/dev/null; (exec 2>&3 3>&-; exec "$@"); exit $?'


@dataclass(frozen=True)
class Workspace:
    """A work tree and what belongs to it."""

    tree: Path
    watched: Watched
    owner: int | None
    image: str | None = None
    """Container image, where there are containers."""
    mounts: Mapping[str, Path] = field(default_factory=dict)
    """Folders that can be written, by their paths in a sandbox of bubblewrap. Empty: the tree, at `/testbed`."""
    folder: str = TESTBED
    """Where its commands start, in a sandbox of bubblewrap."""


class Sandbox(Protocol):
    """What runs commands in work trees."""

    limits: Limits
    pipes: bool
    """Whether a command may be given a pipe to report by; else it reports among its output."""

    def prepare(self, tree: Path, image: str | None = None) -> Workspace:
        """A tree that commands are to run in: it is given to the user that they run as."""

    def run(
        self, workspace: Workspace, command: str | Sequence[str], *, longest: int, limits: Limits | None = None,
        stdin: bytes = b"", program: Path | None = None, report: tuple[int, int] | None = None,
    ) -> Ran:  # fmt: skip
        """Run a shell command, or a program with its arguments, to its end; nothing of it is left.

        `program`: a file that can be read there at the path :meth:`seen` says. `report`: a pipe that may be written to.
        """

    def seen(self, path: Path) -> str:
        """The path of a tree, or of a program, as commands see it."""


def shell_limits(limits: Limits, *, processes: bool) -> str:
    """Arguments of bash's `ulimit` for the limits of a process.

    `processes`: whether their number is limited. What counts is every thread of the user on the machine, so that is for
    users that run nothing else.
    """
    seconds = int(limits.seconds) + 2
    most = f" -u {limits.processes}" if processes else ""
    return f"-c 0 -t {seconds} -v {limits.memory_mb * 1024} -f {limits.file_mb * 1024} -n 1024{most}"


def arguments(command: str | Sequence[str], limits: Limits, *, first: str = "", processes: bool = False) -> list[str]:
    """A command behind bash that sets its limits, and runs `first` before. `processes`: as :func:`shell_limits`."""
    shell = _SHELL if isinstance(command, str) else _PROGRAM
    script = first + shell.format(limits=shell_limits(limits, processes=processes))
    given = [command] if isinstance(command, str) else list(command)
    return ["/bin/bash", "--noprofile", "--norc", "-c", script, "bash", *given]


def environment(interpreter: Interpreter, tree: str, binaries: str) -> dict[str, str]:
    """The environment variables of a command: these, and no others."""
    own = Path(interpreter.path).parent
    return {
        "PATH": f"{own}:{binaries}:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "LANG": "C.UTF-8", "TERM": "dumb",
        "PAGER": "cat", "GIT_PAGER": "cat", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": ":".join(searched(tree, interpreter.sources)), "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }  # fmt: skip


def searched(tree: str, sources: Sequence[str]) -> list[str]:
    """The folders of a tree that Python looks in."""
    return [*(f"{tree}/{each}" for each in sources), tree, f"{tree}/src"]


def write_binaries(folder: Path, interpreter: Interpreter) -> None:
    """Make a folder with the commands `python` and `python3`, which not every interpreter's folder has."""
    folder.mkdir()
    folder.chmod(0o755)
    for name in ("python", "python3"):
        (folder / name).write_text(f'#!/bin/sh\nexec "{interpreter.path}" "$@"\n')
        (folder / name).chmod(0o755)


def give(tree: Path, owner: int) -> None:
    """Make a tree a user's own. Links are given themselves, never what they lead to."""
    os.chown(tree, owner, owner, follow_symlinks=False)
    for folder, folders, files, at in os.fwalk(tree, follow_symlinks=False):
        del folder
        for name in [*folders, *files]:
            os.chown(name, owner, owner, dir_fd=at, follow_symlinks=False)


def users_owner() -> int | None:
    """A user of its own for a tree, where this process may choose one."""
    return _FIRST_USER + secrets.randbelow(1 << 27) if os.geteuid() == 0 else None


class Bubblewrap:
    """A sandbox per command (protocol `Sandbox`)."""

    pipes = True

    def __init__(
        self,
        interpreter: Interpreter,
        limits: Limits,
        folder: Path,
        hidden: Sequence[Path],
        needs: str = "pytest",
        setting: str = "sandbox: none",
    ) -> None:
        """
        Args:
            folder: for what the sandbox shows beside the tree; whoever commands run as may read it.
            hidden: files and folders that no command may read, wherever they are.
            needs: a module that the interpreter must have there.
            setting: of the environment, by which there is no sandbox.

        Raises BadInput where there is no bubblewrap, or no sandbox of it here.
        """
        self.limits, self._interpreter, self._folder, self._setting = limits, interpreter, folder, setting
        self._bwrap = shutil.which("bwrap") or ""
        if not self._bwrap:
            raise self._unavailable("bubblewrap is not installed (no `bwrap`)", "apt install bubblewrap, 0.8 or later")
        self._write_files()
        self._reached = self._reach()
        self._fixed = [*self._system(), *self._hiding(hidden)]
        self._env = environment(interpreter, TESTBED, f"{_BESIDE}/python")
        self._try(folder / "try", needs)

    def prepare(self, tree: Path, image: str | None = None) -> Workspace:
        """Give a tree to a user of its own, where this process may."""
        owner = users_owner()
        if owner is not None:
            give(tree, owner)
        return Workspace(tree, Watched(tree, self.limits), owner)

    def seen(self, path: Path) -> str:
        """`/testbed` for a tree, a workspace beside it for a program."""
        return TESTBED if path.is_dir() else f"{_BESIDE}/{path.name}"

    def run(
        self, workspace: Workspace, command: str | Sequence[str], *, longest: int, limits: Limits | None = None,
        stdin: bytes = b"", program: Path | None = None, report: tuple[int, int] | None = None,
    ) -> Ran:  # fmt: skip
        """Run a command in a new sandbox. Raises OSError where none can be started."""
        limits = limits or self.limits
        told, tells = os.pipe()
        shown = {} if program is None else {program: self.seen(program)}
        argv, owner = self._started(workspace, command, limits, shown, ["--json-status-fd", str(tells)])
        launch = Launch(argv, self._env, *_found_by(told), owner, pass_fds=(tells,), started=lambda: os.close(tells))
        try:
            return supervise(launch, limits, workspace.watched, longest=longest, stdin=stdin, report=report)
        finally:
            os.close(told)

    def launched(
        self, workspace: Workspace, command: Sequence[str], shown: Mapping[Path, str], limits: Limits | None = None
    ) -> tuple[list[str], dict[str, str], int | None]:
        """The arguments, the environment and the user of a process that runs a program in a new sandbox, for whoever
        starts it, and kills it. Of the limits those of a process hold. `shown`: files that it sees besides, with their
        paths there."""
        argv, owner = self._started(workspace, command, limits or self.limits, shown, [])
        return argv, dict(self._env), owner

    def _started(
        self, workspace: Workspace, command: str | Sequence[str], limits: Limits, shown: Mapping[Path, str],
        more: Sequence[str],
    ) -> tuple[list[str], int | None]:  # fmt: skip
        before, owner = self._before(workspace.owner)
        wrapping = self._wrapping(workspace, limits, shown, more)
        return [*before, *wrapping, *arguments(command, limits, processes=True)], owner

    def _wrapping(
        self, workspace: Workspace, limits: Limits, shown: Mapping[Path, str], more: Sequence[str]
    ) -> list[str]:
        size = str(limits.temporary_mb * MEGABYTE)
        files = [word for path, seen in shown.items() for word in ("--ro-bind", str(path), seen)]
        # Before what is fixed, which may be in one of them.
        mounts = workspace.mounts or {TESTBED: workspace.tree}
        trees = [word for seen, path in mounts.items() for word in ("--bind", str(path), seen)]
        return [
            self._bwrap, "--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session",
            "--as-pid-1", "--uid", "1000", "--gid", "1000", "--hostname", "testbed", *more,
            "--proc", "/proc", "--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
            "--size", size, "--perms", "1777", "--tmpfs", "/tmp", *trees, *self._fixed, *files, "--remount-ro", "/",
            "--chdir", workspace.folder, "--",
        ]  # fmt: skip

    def _system(self) -> list[str]:
        found = ["--ro-bind", "/usr", "/usr"]
        for name in _SYSTEM:
            path = Path("/", name)
            if path.is_symlink():
                found += ["--symlink", str(path.readlink()), str(path)]
            elif path.is_dir():
                found += ["--ro-bind", str(path), str(path)]
        for name in _ETC:
            found += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for name in _USERS:
            found += ["--ro-bind", str(self._folder / name), f"/etc/{name}"]
        for root in self._interpreter.roots:
            if not Path(root).is_relative_to("/usr") and Path(root) != Path("/"):
                found += ["--ro-bind", str(self._reached.get(root, root)), root]
        return [*found, "--ro-bind", str(self._folder / "python"), f"{_BESIDE}/python"]

    def _reach(self) -> dict[str, Path]:
        """Where folders of the interpreter are mounted that a user of a tree has no way to, such as one of root's."""
        if os.geteuid() != 0:
            return {}
        closed = [root for root in self._interpreter.roots if not open_to_all(Path(root))]
        reached = {root: self._folder / f"root{number}" for number, root in enumerate(closed)}
        for folder in reached.values():
            folder.mkdir()
        return reached

    def _before(self, owner: int | None) -> tuple[list[str], int | None]:
        """What stands before `bwrap`, and the user that all of it is started as: where folders have to be mounted, that
        is done in a mount namespace of the command's own, before root becomes the user."""
        if owner is None or not self._reached:
            return [], owner
        mounts = " && ".join(
            f"mount --bind {shlex.quote(root)} {shlex.quote(str(folder))}" for root, folder in self._reached.items()
        )
        user = f"setpriv --reuid {owner} --regid {owner} --clear-groups --inh-caps=-all"
        script = f'{mounts} && exec {user} "$@"'
        return ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", script, "sh"], None

    def _hiding(self, hidden: Sequence[Path]) -> list[str]:
        """What covers files that lie in a folder which is shown."""
        found: list[str] = []
        shown = [Path("/usr"), *(Path(root) for root in self._interpreter.roots)]
        for path in {each for named in hidden for each in (named.absolute(), named.resolve())}:
            if path.exists() and any(path.is_relative_to(root) and path != root for root in shown):
                folder = ["--tmpfs", str(path), "--remount-ro", str(path)]
                found += folder if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]
        return found

    def _write_files(self) -> None:
        """The users, and the commands of Python."""
        write_binaries(self._folder / "python", self._interpreter)
        for name, text in _USERS.items():
            (self._folder / name).write_text(text)
            (self._folder / name).chmod(0o644)

    def _try(self, folder: Path, needs: str) -> None:
        folder.mkdir()
        asked = f"import importlib.util; print(importlib.util.find_spec({needs!r}) is not None)"
        # A short limit, on a busy machine, says nothing about sandboxes.
        limits = self.limits.model_copy(update={"seconds": max(60.0, self.limits.seconds)})
        command = [self._interpreter.path, "-I", "-c", asked]
        ran = self.run(self.prepare(folder), command, longest=2000, limits=limits)
        shutil.rmtree(folder)
        if ran.code != 0 or ran.output.strip() != "True":
            raise self._unavailable(
                f"no sandbox can be had here: {ran.output.strip() or ran.ended or ran.code}",
                "install bubblewrap 0.8 or later; allow user namespaces "
                "(`sysctl -w kernel.unprivileged_userns_clone=1`, "
                "`sysctl -w kernel.apparmor_restrict_unprivileged_userns=0`; in docker: `--privileged`); "
                f"keep {self._interpreter.path} and {folder.parent} where every user may read them",
            )

    def _unavailable(self, found: str, next_step: str) -> BadInput:
        return BadInput(
            found,
            expected="a sandbox of bubblewrap, which keeps commands of an actor from this machine and from solutions",
            where=f"{_SETTINGS}.{self._setting.partition(':')[0]}",
            next_step=f"{next_step}. Or, at your own risk, run them as they are: environment.{self._setting}",
        )


def _found_by(told: int) -> tuple[Callable[[int], list[int]], Callable[[int], None]]:
    """How the processes of a sandbox are found and ended: bubblewrap says which one is the first."""
    first: list[int] = []

    def first_process(seconds: float = 0.0) -> int | None:
        if not first and select.select([told], [], [], seconds)[0]:
            with suppress(OSError, ValueError, KeyError):
                first.append(int(json.loads(os.read(told, 4096).split(b"\n")[0])["child-pid"]))
        return first[0] if first else None

    def members(started: int) -> list[int]:
        pid = first_process()
        return [] if pid is None else _of_namespace(pid)

    def end(started: int) -> None:
        # The first process takes all others with it, and bubblewrap waits for it. Bubblewrap alone is not killed before
        # it has said which one that is: the process it was about to start would wait for it without end.
        pid = first_process(_SAYS)
        with suppress(OSError):
            if os.waitid(os.P_PID, started, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                os.kill(started if pid is None else pid, signal.SIGKILL)

    return members, end


def open_to_all(folder: Path) -> bool:
    """Whether every user may go to a folder and read it."""
    wanted = stat.S_IROTH | stat.S_IXOTH
    way = all(each.stat().st_mode & stat.S_IXOTH for each in folder.resolve().parents)
    return way and folder.stat().st_mode & wanted == wanted


def _of_namespace(first: int) -> list[int]:
    try:
        wanted = Path(f"/proc/{first}/ns/pid").stat().st_ino
    except OSError:
        return []
    found = []
    for process in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if (process / "ns/pid").stat().st_ino == wanted:
                found.append(int(process.name))
    return found
