"""`kind: harbor`: which task folders are read, what a sandbox of one shows, and what its own tests say."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from crl.config import SamplingConfig
from crl.envs.check.conduct import tasks
from crl.errors import BadInput
from crl.protocols import RunsPrograms
from crl.rollout.play import EpisodeSlot, PlayedEpisode
from crl.rollout.programs import play_programs
from crl.worlds.harbor import HarborConfig
from crl.worlds.harbor.dockerfile import Refused, lay_out, layout_of
from crl.worlds.harbor.environment import _reward
from tests.unit.rollout.fakes import method, task
from tests.unit.rollout.test_play import seed_of
from tests.unit.rollout.test_programs import policy
from tests.worlds.harbor.world import FOLDERS, INSTALLS, write, write_all

AGENT = Path(__file__).with_name("agent.py")
needs_sandbox = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bubblewrap here")


def config(folder: Path, **changes: Any) -> HarborConfig:
    given = {"command": ["python", str(AGENT)], "tasks": str(folder), "held_out_from": None}
    return HarborConfig(**{**given, **changes})


def test_folders_are_tasks_with_their_limits(tmp_path: Path) -> None:
    made = config(write_all(tmp_path / "tasks"))
    found = {each.name: each for each in made.sides().training}
    assert list(found) == sorted(FOLDERS) and found["greet"].text == FOLDERS["greet"]["instruction.md"]
    assert (found["greet"].seconds, found["greet"].tests_seconds, found["greet"].memory_mb) == (900.0, 600.0, 1024)
    assert (
        found["sum"].variables
        == {
            "NAME": "sum",
            "MORE": "a b",
            "UNIT": "m",
            "LD_PRELOAD": "/none.so",
        }
        and found["sum"].seconds is None
    )
    assert set(made.data_files()) == {str(tmp_path / "tasks"), str(AGENT)}, "a changed task is another experiment"
    (rows,) = made.outside_rows()
    assert len(rows.rows) == 3
    one = config(tmp_path / "tasks" / "home").sides().training
    assert [each.name for each in one] == ["home"], "a task folder alone will do"
    kept = config(tmp_path / "tasks", held_out_from=1000, test_size=0.8)
    assert kept.held_out_levels and kept.held_out_levels + len(kept.sides().training) == 3


def test_a_folder_that_installs_a_package_is_refused_by_name_and_line(tmp_path: Path) -> None:
    write(write_all(tmp_path / "tasks") / "jq", INSTALLS)
    with pytest.raises(BadInput) as refused:
        config(tmp_path / "tasks").make()
    assert "1 of 4 task folders" in str(refused.value)
    assert "jq/environment/Dockerfile, line 3: RUN" in str(refused.value)
    assert "greet" not in str(refused.value)


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"task.toml": "[[steps]]\nname = 'one'\n"}, "several steps"),
        ({"task.toml": "[environment]\ngpus = 1\n"}, "GPU"),
        ({"task.toml": "[environment]\nos = 'windows'\n"}, "windows"),
        ({"task.toml": "[verifier]\nenvironment_mode = 'separate'\n"}, "environment of their own"),
        ({"task.toml": "[verifier.env]\nKEY = '${KEY}'\n"}, "KEY is to be a variable of this machine"),
        ({"task.toml": "[agent]\ntimeout_sec = 'long'\n"}, "agent.timeout_sec"),
        ({"task.toml": "[verifier]\ntimeout_sec = inf\n"}, "verifier.timeout_sec: .*finite"),
        ({"task.toml": "[agent\n"}, "task.toml: .*line 1"),
        ({"instruction.md": " \n"}, "instruction.md"),
        ({"environment/docker-compose.yaml": "services: {}\n"}, "docker-compose.yaml"),
        ({"environment/Dockerfile": "FROM a\nWORKDIR /app\nCOPY x .\n"}, "line 3: there is no x"),
    ],
)
def test_what_a_sandbox_cannot_do_is_refused(tmp_path: Path, files: dict[str, str], said: str) -> None:
    write(tmp_path / "one", {**FOLDERS["greet"], **files})
    with pytest.raises(BadInput, match=said):
        config(tmp_path).make()


def test_folders_with_links_or_without_tests_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no folder in it holds a task\.toml"):
        config(tmp_path).make()
    with pytest.raises(BadInput, match="there is no folder"):
        config(tmp_path / "nowhere").make()
    write(tmp_path / "one", FOLDERS["greet"])
    (tmp_path / "one" / "environment" / "passwd").symlink_to("/etc/passwd")
    with pytest.raises(BadInput, match="is a link"):
        config(tmp_path).make()
    (tmp_path / "one" / "environment" / "passwd").unlink()
    (tmp_path / "one" / "tests" / "test.sh").unlink()
    with pytest.raises(BadInput, match=r"tests/test\.sh is missing"):
        config(tmp_path).make()
    (tmp_path / "one" / "environment" / "Dockerfile").unlink()
    with pytest.raises(BadInput, match=r"one: tests/test\.sh is missing"):
        config(tmp_path).make()
    (tmp_path / "one" / "tests" / "test.sh").touch()
    with pytest.raises(BadInput, match="one: environment/Dockerfile cannot be read: No such file"):
        config(tmp_path).make()
    (tmp_path / "one" / "instruction.md").write_bytes(b"caf\xe9")
    with pytest.raises(BadInput, match=r"one: instruction\.md cannot be read: .*UnicodeDecodeError"):
        config(tmp_path).make()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("WORKDIR /app", "FROM is missing"),
        ("FROM a\nWORKDIR /app\nrun true", "line 3: RUN"),
        ("FROM a\nWORKDIR /app\n# more\nUSER me", "line 4: USER"),
        ("FROM a\nFROM b\nWORKDIR /app", "line 2: a second FROM"),
        ("FROM a\nCOPY --from=b /x /app", "line 2: COPY --from=b"),
        ("FROM a\nADD https://example.com/x /app/x", "line 2: ADD https://example.com/x"),
        ("FROM a\nADD x.tar.gz /app/", "unpacked"),
        ("FROM a\nCOPY x /usr/bin/x", "line 2: /usr/bin/x is a folder of the system"),
        ("FROM a\nCOPY x /app/../etc/x", "line 2: /etc/x"),
        ("FROM a\nCOPY <<END /app/x\nhello\nEND", "line 2: COPY <<END"),
        ("FROM a\nCOPY --chmod=u+x x /app/x", "octal"),
        ("FROM a\nCOPY x", "line 2: COPY x"),
        ("FROM a\nCOPY x /app/x", "WORKDIR is missing"),
        ("FROM a\nWORKDIR /app\nENTRYPOINT [\"run\"]", "line 3: ENTRYPOINT"),
    ],
)  # fmt: skip
def test_lines_that_only_an_image_would_have_are_refused(text: str, said: str) -> None:
    with pytest.raises(Refused) as refused:
        layout_of(text)
    assert said in str(refused.value)


def test_files_are_copied_as_a_build_copies_them(tmp_path: Path) -> None:
    files = {"a.txt": "a", "b.txt": "b", "code/main.py": "m", "code/lib/x.py": "x", "run.sh": "r"}
    context = write(tmp_path / "context", files)
    text = (
        "FROM base:1\nENV HERE=/app/deep THERE=/data\nWORKDIR $HERE\nCOPY a.txt .\nCOPY a.txt renamed.txt\n"
        "COPY *.txt ${THERE}/\nCOPY code src\nWORKDIR more\nCOPY --chmod=755 --chown=a:b ./run.sh /opt/x/run\n"
        "COPY ./ /all\n"
    )
    layout = layout_of(text)
    lay_out(layout, context, tmp_path / "tree")
    found = {str(each.relative_to(tmp_path / "tree")) for each in (tmp_path / "tree").rglob("*") if each.is_file()}
    assert found == {
        "app/deep/a.txt", "app/deep/renamed.txt", "data/a.txt", "data/b.txt", "app/deep/src/main.py",
        "app/deep/src/lib/x.py", "opt/x/run", *(f"all/{name}" for name in files),
    }  # fmt: skip
    assert str(layout.folder) == "/app/deep/more" and (tmp_path / "tree/app/deep/more").is_dir()
    assert os.access(tmp_path / "tree/opt/x/run", os.X_OK)
    for source in ("c.txt", "../secret", "code/../../x"):
        with pytest.raises(Refused, match="line 3"):
            lay_out(layout_of(f"FROM a\nWORKDIR /app\nCOPY {source} /app/"), context, tmp_path / "other")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({"reward.txt": "0.5\n"}, (0.5, {})),
        ({"reward.json": '{"reward": 1, "ok": true, "why": "x"}'}, (1.0, {"reward": 1.0, "ok": 1.0})),
        ({"reward.json": '{"score": 0.25}', "reward.txt": "1"}, (0.25, {"score": 0.25})),
        ({"reward.json": "2"}, (2.0, {})),
        ({}, "neither"), ({"reward.txt": "well"}, "well"), ({"reward.json": '{"a": 1, "b": 2}'}, "names no reward"),
        ({"reward.txt": "1" * 2_000_000}, "no small file"),
    ],
)  # fmt: skip
def test_what_tests_write_is_the_reward(tmp_path: Path, files: dict[str, str], found: Any) -> None:
    write(tmp_path, files)
    if isinstance(found, str):
        with pytest.raises(ValueError, match=found):
            _reward(tmp_path)
    else:
        assert _reward(tmp_path) == found


def test_a_link_that_tests_left_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("0.5")
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "reward.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match=r"reward\.txt"):
        _reward(tmp_path / "logs")
    (tmp_path / "logs" / "reward.txt").unlink()
    os.mkfifo(tmp_path / "logs" / "reward.txt")
    with pytest.raises(ValueError, match="no small file"):
        _reward(tmp_path / "logs")


def played(made: HarborConfig, folder: Path, says: Callable[[str], str], seeds: int = 3) -> dict[str, PlayedEpisode]:
    """The tasks by their names, played by an actor that says what a function makes of the text that it reads."""
    environment = made.make()
    try:
        assert isinstance(environment, RunsPrograms)
        starts = environment.reset_many(list(range(seeds)))
        names = [environment.content(slot).splitlines()[0] for slot in range(seeds)]
        planned = [replace(task(at, at), goal=start.goal, first_observation="") for at, start in enumerate(starts)]
        found = play_programs(
            policy(says), environment, [EpisodeSlot(each) for each in planned], method=method(), seed_of=seed_of,
            sampling=SamplingConfig(max_new_tokens=200), weights_digest="0" * 64, stage="collect", folder=folder / "w",
        )  # fmt: skip
        assert environment.home is not None and not list(environment.home.glob("*-*"))
        return dict(zip(names, found, strict=True))
    finally:
        environment.close()


def solving(text: str) -> str:
    commands = {
        "greeting": "echo hello > greeting.txt",
        "numbers": "echo 12 > sum.txt",
        "home folder": "touch ~/key /tmp/key",
    }
    return next(command for word, command in commands.items() if word in text)


@needs_sandbox
@pytest.mark.slow
def test_three_folders_are_played_and_their_tests_give_the_reward(tmp_path: Path) -> None:
    made = config(write_all(tmp_path / "tasks"), call_seconds=1800)
    (finding,) = tasks(made, 3600)
    assert (finding.outcome, finding.message) == ("ok", "the reference solutions of 3 tasks win")
    for name, each in played(made, tmp_path, solving).items():
        assert each.episode.success and each.episode.reward == 1.0, (name, each.details)
        assert each.episode.turns == 2 and each.episode.goal == FOLDERS[name]["instruction.md"]
    wrong = played(made, tmp_path, lambda text: "echo 13 > sum.txt")
    assert {name: each.raw_reward for name, each in wrong.items()} == {"greet": 0.0, "sum": 0.25, "home": 0.0}
    parts = dict(zip(wrong["sum"].episode.reward_names, wrong["sum"].episode.reward_values, strict=True))
    assert parts == {"reward": 0.25, "there": 1.0}


CHEAT = """
mkdir -p /logs/verifier /tests 2>&1; echo 1 > /logs/verifier/reward.txt; cp -r /logs /app/logs
rm -rf /logs/verifier; ln -s /app /logs/verifier; cat /tests/* /solution/* 2>&1 | head -c 80
"""


@needs_sandbox
@pytest.mark.slow
def test_an_agent_cannot_plant_its_reward_nor_see_the_tests(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "greet", FOLDERS["greet"])
    (found,) = played(config(tmp_path / "tasks"), tmp_path, lambda text: CHEAT, 1).values()
    assert found.episode.error is None and found.raw_reward == 0.0
    assert "No such file" in found.turns[1].observation and "expected" not in found.turns[1].observation


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo here; exit 1", "neither reward.json nor reward.txt"),
        ("sleep 600", "ran longer than 2 seconds"),
        ("echo much > /logs/verifier/reward.txt", "much"),
    ],
)
def test_tests_that_say_nothing_cost_the_episode(tmp_path: Path, script: str, said: str) -> None:
    files = {**FOLDERS["greet"], "tests/test.sh": script, "task.toml": "[verifier]\ntimeout_sec = 2\n"}
    write(tmp_path / "tasks" / "greet", files)
    (found,) = played(config(tmp_path / "tasks"), tmp_path, solving, 1).values()
    assert found.episode.error == "environment_tests" and said in (found.details or "")
    (finding,) = tasks(config(tmp_path / "tasks"), 60)
    assert finding.outcome == "failed" and said in finding.message


DOWNLOADS = """#!/bin/bash
apt-get install -y curl
curl -LsSf https://example.com/install.sh | sh
uvx pytest /tests/test_outputs.py
if [ $? -eq 0 ]; then echo 1 > /logs/verifier/reward.txt; else echo 0 > /logs/verifier/reward.txt; fi
"""


@needs_sandbox
@pytest.mark.slow
def test_tests_that_download_are_found_by_the_reference_solution(tmp_path: Path) -> None:
    write(tmp_path / "tasks" / "greet", {**FOLDERS["greet"], "tests/test.sh": DOWNLOADS})
    (finding,) = tasks(config(tmp_path / "tasks"), 60)
    assert finding.outcome == "failed" and "greet: its tests give the reward 0 to solution" in finding.message
    assert "uvx: command not found" in finding.message


@needs_sandbox
@pytest.mark.slow
def test_the_time_of_an_agent_is_that_of_its_task(tmp_path: Path) -> None:
    files = {**FOLDERS["greet"], "task.toml": "[agent]\ntimeout_sec = 1\n"}
    write(tmp_path / "tasks" / "greet", files)
    (found,) = played(config(tmp_path / "tasks"), tmp_path, lambda text: "sleep 600", 1).values()
    assert found.episode.error == "program_seconds" and "it has 1" in (found.details or "")
    assert json.dumps(found.episode.reward) == "0.0"
