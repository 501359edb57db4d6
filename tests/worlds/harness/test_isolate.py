"""`isolate: true`: a program in a sandbox reaches the actor and nothing else."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from crl.config import SamplingConfig
from crl.errors import BadInput
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rollout.programs import play_programs
from crl.worlds.harness import HarnessConfig
from tests.unit.rollout.fakes import method, task
from tests.unit.rollout.program_fakes import CLIENT
from tests.unit.rollout.test_play import seed_of
from tests.unit.rollout.test_programs import policy, running

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")
AGENT = (
    CLIENT
    + """
import socket
found = {"said": ask([user(task)])["content"], "arguments": sys.argv[1:], "names": sorted(os.environ)}
def tried(name, work):
    try: found[name] = str(work())
    except OSError as error: found[name] = type(error).__name__
port = int(task.split()[0])
tried("port", lambda: socket.create_connection(("127.0.0.1", port), 5))
tried("outside", lambda: socket.create_connection(("1.1.1.1", 53), 5))
tried("secret", lambda: open(task.split()[1]).read())
tried("tasks", lambda: open(os.path.join(os.path.dirname(task.split()[1]), "tasks.jsonl")).read())
tried("write", lambda: open("/usr/here", "w"))
open("found.json", "w").write(json.dumps(found))
"""
)


def reward(folder: Path) -> float:
    FOUND.append(json.loads((folder / "found.json").read_text()))
    return 1.0


FOUND: list[dict[str, object]] = []


def played(config: HarnessConfig, folder: Path, **limits: int) -> PlayedEpisode:
    environment = config.make()
    try:
        assert environment._isolated is not None
        sandbox = environment._isolated.sandbox
        sandbox.limits = sandbox.limits.model_copy(update=limits)
        (start,) = environment.reset_many([0])
        planned = replace(task(0, 0), goal=start.goal, first_observation="")
        (found,) = play_programs(
            policy(), environment, [EpisodeSlot(planned)], method=method(), seed_of=seed_of,
            sampling=SamplingConfig(max_new_tokens=200), weights_digest="0" * 64, stage="collect", folder=folder / "w",
        )  # fmt: skip
        return found
    finally:
        environment.close()


@pytest.mark.slow
def test_a_program_in_a_sandbox_plays_and_reaches_no_other_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY_OF_MINE", "x")
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "secret").write_text("mine")
    with socket.create_server(("127.0.0.1", 0)) as other:
        text = f"{other.getsockname()[1]} {tmp_path / 'secret'}"
        (tmp_path / "tasks.jsonl").write_text(json.dumps({"task": text}))
        config = HarnessConfig(
            command=["python", str(tmp_path / "agent.py"), "{task}"], tasks=str(tmp_path / "tasks.jsonl"),
            reward=f"{__name__}:reward", held_out_from=None, isolate=True,
        )  # fmt: skip
        sys.modules.setdefault(__name__, sys.modules[__name__])
        FOUND.clear()
        episode = played(config, tmp_path)
    assert episode.episode.success, episode.details
    (found,) = FOUND
    assert found["said"] == episode.turns[0].output and found["arguments"] == [text]
    assert found["port"] == "ConnectionRefusedError" and found["outside"] == "OSError"
    assert found["secret"] == found["tasks"] == "FileNotFoundError" and found["write"] == "OSError"
    assert "A_KEY_OF_MINE" not in found["names"] and "CRL_TASK" in found["names"]
    assert not running(str(tmp_path)) and not (tmp_path / "w").exists()
    hangs = tmp_path / "hangs.py"
    child = "import subprocess\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)"
    hangs.write_text(f"{CLIENT}ask([user(task)])\n{child}")
    config = config.model_copy(update={"command": ["python", str(hangs)], "call_seconds": 2.0})
    assert played(config, tmp_path).episode.error == "program_call_seconds" and not running(str(tmp_path))
    broken = tmp_path / "broken.py"
    broken.write_text("raise ValueError('in here')")
    config = config.model_copy(update={"command": ["python", str(broken)], "call_seconds": 60.0})
    found_error = played(config, tmp_path)
    assert found_error.episode.error == "program_exit" and "in here" in (found_error.details or "")


HOARDS = """
import subprocess, sys
held = "held = b'x' * (100 << 20); print(len(held), flush=True); import time; time.sleep(600)"
for _ in range(3): subprocess.Popen([sys.executable, "-c", held])
time.sleep(600)
"""
FILLS = "for at in range(4): open(str(at), 'wb').write(b'x' * (10 << 20))\ntime.sleep(600)"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "limits", "said"),
    [
        (HOARDS, {"memory_mb": 200}, "more than 200 MB of memory"),
        (FILLS, {"tree_mb": 16}, "more than 16 MB"),
        ("import subprocess\nwhile True: subprocess.Popen(['sleep', '600'])", {"processes": 20}, "unavailable"),
    ],
)  # fmt: skip
def test_what_its_processes_use_together_has_limits(
    tmp_path: Path, code: str, limits: dict[str, int], said: str
) -> None:
    (tmp_path / "agent.py").write_text(f"{CLIENT}ask([user(task)])\n{code}")
    (tmp_path / "tasks.jsonl").write_text('{"task": "One."}')
    config = HarnessConfig(
        command=["python", str(tmp_path / "agent.py")], tasks=str(tmp_path / "tasks.jsonl"),
        reward=f"{__name__}:reward", held_out_from=None, isolate=True,
    )  # fmt: skip
    found = played(config, tmp_path, **limits)
    assert found.episode.error in ("program_limits", "program_exit") and said in (found.details or "")
    assert not running(str(tmp_path)) and found.episode.turns == 1


def test_a_function_cannot_be_isolated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"task": "One."}')
    config = HarnessConfig(
        command="json:loads", tasks=str(tmp_path / "tasks.jsonl"), reward="json:dumps", held_out_from=None,
        isolate=True,
    )  # fmt: skip
    with pytest.raises(BadInput, match="a sandbox does not show"):
        config.make()
    config = config.model_copy(update={"command": ["python"]})
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BadInput, match="bubblewrap is not installed") as caught:
        config.make()
    assert "environment.isolate" in str(caught.value) and "environment.isolate: false" in str(caught.value)
