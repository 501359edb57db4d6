"""The alfworld package behind a pipe, beside this project's engine: for comparing them and for timing both.

Run as a script by an interpreter that has `alfworld` (0.4 needs `textworld[pddl]`), this file reads one JSON per line
from standard input and answers each with one line. `{"load": path}` starts the game of a file, as the package does for
every episode; `{"do": command}` steps it. Both answer `{"text", "commands", "won", "seconds"}`: what the package says,
lists and thinks, and how long it took, without the pipe. `{"logic": ""}` answers with the grammar and the domain that
come with the package. :class:`Reference` is the other end.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

VARIABLE = "CRL_ALFWORLD_PYTHON"
MISSING = (
    f"the alfworld package is not installed here, and ${VARIABLE} names no interpreter that has it "
    "(python3.11 -m venv ENV && ENV/bin/pip install 'alfworld==0.4.2' 'textworld[pddl]')"
)


def interpreter() -> str | None:
    """A Python that has the alfworld package; None where there is none."""
    named = os.environ.get(VARIABLE)
    if named:
        return named if Path(named).is_file() else None
    return sys.executable if importlib.util.find_spec("alfworld") else None


class Reference:
    """A process that plays with the alfworld package. Raises RuntimeError where it ends before it is closed.

    `quick`: each PDDL problem is translated once and not four times (twice when its file is read, twice when it is
    reset), which changes nothing of what is said. Not for timing.
    """

    def __init__(self, python: str, *, quick: bool = False) -> None:
        # -P: the folder of this file, with a file named alfworld, is not where packages are looked for.
        self._process = subprocess.Popen(
            [python, "-P", __file__, *(["--quick"] if quick else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
        )

    def ask(self, **request: str) -> dict[str, Any]:
        """The answer to a request."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the alfworld package ended with {self._process.wait()} after {request}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def translate_once() -> None:
    """Keep the last translation of a problem. The optimized one is for plans, which nobody asks for here."""
    import fast_downward

    translate: Any = fast_downward.pddl2sas
    kept: dict[tuple[str, str], Any] = {}

    def once(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        if (domain, problem) not in kept:
            kept.clear()
            kept[domain, problem] = translate(domain, problem, verbose=verbose, optimize=False)
        return kept[domain, problem]

    fast_downward.pddl2sas = once


def serve() -> None:
    """Answer until the input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what the planner's library prints is no answer
    import textworld
    from alfworld.agents.environment.alfred_tw_env import AlfredDemangler
    from alfworld.info import ALFRED_PDDL_PATH, ALFRED_TWL2_PATH

    if "--quick" in sys.argv:
        translate_once()
    infos = textworld.EnvInfos(won=True, admissible_commands=True, feedback=True)
    game: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        if "logic" in request:
            texts = {"grammar": Path(ALFRED_TWL2_PATH).read_text(), "domain": Path(ALFRED_PDDL_PATH).read_text()}
            print(json.dumps(texts), file=answers, flush=True)
            continue
        if "load" in request and game is None:
            game = textworld.start(request["load"], infos, wrappers=[AlfredDemangler(shuffle=False)])
        elif "load" in request:
            game.load(request["load"])
        began = time.perf_counter()
        state = game.reset() if "load" in request else game.step(request["do"])[0]
        answer = {
            "text": state["feedback"],
            "commands": list(state["admissible_commands"]),
            "won": bool(state["won"]),
            "seconds": time.perf_counter() - began,
        }
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    serve()
