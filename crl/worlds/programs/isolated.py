"""A command of a person's: what it names is found, and in a sandbox it sees that and reaches nothing but the actor."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from crl.protocols import Program
from crl.worlds.sandbox.bubblewrap import Bubblewrap, Workspace
from crl.worlds.sandbox.interpreters import interpreter_of
from crl.worlds.sandbox.limits import Limits, in_words
from crl.worlds.sandbox.usage import Watched
from crl.worlds.sandbox.workplace import Workplace

_PORT = 8000
"""Of the gateway, on the loopback of a sandbox."""


def is_file(word: str) -> bool:
    """Whether a word of a command names a file, from here."""
    with suppress(OSError, ValueError):
        return "{task}" not in word and Path(word).is_file()
    return False


def argv_of(command: Sequence[str]) -> list[str]:
    """A command with the whole paths of the files that it names; `python` is the interpreter that runs this."""
    words = [str(Path(word).absolute()) if is_file(word) else word for word in command]
    return [sys.executable if command[0] in ("python", "python3") else words[0], *words[1:]]


class Isolated:
    """Where programs run in sandboxes.

    Attributes:
        home: the folder that they run in folders of.
    """

    def __init__(self, argv: Sequence[str], limits: Limits, setting: str = "isolate: false") -> None:
        """`argv`: the command. `setting`: of the environment, by which there is no sandbox. Raises BadInput where there
        are no sandboxes here."""
        self._workplace = workplace = Workplace()
        self.home, tools = workplace.folder / "home", workplace.folder / "tools"
        self.home.mkdir(mode=0o711)
        tools.mkdir(mode=0o755)
        # Copies, for a user of the sandbox may have no way to where the files are.
        files = [Path(__file__).with_name("forward.py"), *map(Path, filter(is_file, argv[1:]))]
        self._shown = {path: tools / f"{at}-{path.name}" for at, path in enumerate(files)}
        for path, copy in self._shown.items():
            copy.write_bytes(path.read_bytes())
            copy.chmod(0o644)
        self.sandbox = Bubblewrap(interpreter_of(None, "json"), limits, tools, [], "json", setting)

    def program(
        self, words: Sequence[str], workspace: Workspace, variables: Mapping[str, str], limits: Limits | None = None
    ) -> Program:
        """A command in a sandbox that leads to the gateway."""
        seen = {copy: f"/crl/{copy.name}" for copy in self._shown.values()}
        named = {str(path): seen[copy] for path, copy in self._shown.items()}
        command = [words[0], *(named.get(word, word) for word in words[1:])]
        shown = {**seen, self.home / "gateway.sock": "/crl/gateway.sock"}
        inside = [sys.executable, "-I", "/crl/0-forward.py", str(_PORT), "/crl/gateway.sock", *command]
        limits = limits or self.sandbox.limits
        argv, given, user = self.sandbox.launched(workspace, inside, shown, limits)
        watched = Watched(workspace.tree, limits)
        return Program(
            tuple(argv), {**given, **variables}, _PORT, user, lambda pids: in_words(limits, watched.look(pids))
        )

    def close(self) -> None:
        """Remove the folder of sandboxes."""
        self._workplace.close()
