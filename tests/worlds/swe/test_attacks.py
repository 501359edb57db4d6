"""What an actor may try, each a test: nothing outside its tree is read or written, and nothing runs on."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from crl.worlds.sandbox.limits import Limits
from crl.worlds.sandbox.workplace import Workplace
from tests.processes import PATIENCE_SECONDS, wait_until
from tests.worlds.swe.world import Player, config_of, files_below, made, needs_bwrap, processes

pytestmark = needs_bwrap
LIMITS = {"seconds": 20.0, "memory_mb": 1024, "processes": 40, "file_mb": 8, "tree_mb": 24, "output_mb": 4}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("swe")


@pytest.fixture(scope="module")
def config(folder):
    return config_of(folder, limits=LIMITS, max_output_characters=2000)


@pytest.fixture(scope="module")
def environment(config):
    with closing(made(config)) as environment:
        yield environment


@pytest.fixture
def player(environment):
    return Player(environment)


def _shortly(environment, command, *, seconds):
    place = environment._place(environment._slots[0])
    limits = Limits(**{**LIMITS, "seconds": seconds})
    return environment._sandbox.run(place, command, longest=1000, limits=limits)


def _tree(environment):
    return environment._slots[0].workspace.tree


def test_there_is_no_network(player):
    seen = player.run(
        "python - <<'END'\nimport socket\nfor address in (('1.1.1.1', 53), ('127.0.0.1', 22)):\n"
        "    try:\n        socket.create_connection(address, 2)\n        print('connected')\n"
        "    except OSError as error:\n        print(type(error).__name__)\nEND\ncat /proc/net/route | wc -l"
    ).observation
    assert "connected" not in seen and "OSError" in seen and seen.endswith("1")


def test_nothing_outside_the_tree_can_be_written(player, tmp_path):
    tmp_path.chmod(0o777)
    seen = player.run(
        f"for d in / /usr /etc /dev /opt /proc /home /root /var/tmp {sys.prefix} {tmp_path}; "
        "do touch $d/touched 2>/dev/null && echo wrote $d; done; touch touched /tmp/touched && echo wrote both"
    ).observation
    assert seen == "wrote both" and files_below(tmp_path) == []


def test_neither_solution_nor_judging_tests_can_be_read(player, folder, config):
    """Not by their paths, not by looking for what they hold; the tests that the tree begins with are there."""
    player.run("true")
    seen = player.run(
        f"cat {config.rows} {folder}/someone/tally-1/tally.py; ls {folder} {config.cache} /work /home /root; "
        "grep -rlsE 'if numbers else 0|def test_none|SOLUTION' / --include=* --exclude-dir=proc --exclude-dir=usr "
        f"--exclude-dir={Path(sys.prefix).name} --exclude-dir=lib; ls tests"
    ).observation
    assert (
        "if numbers else 0" not in seen
        and "test_none" not in seen
        and "rows.jsonl" not in seen.replace(config.rows, "")
    )
    assert "No such file" in seen and seen.rstrip().endswith("test_tally.py")


def test_what_lies_in_a_folder_that_is_shown_is_hidden(tmp_path):
    """An interpreter whose folder also holds the rows and the repositories."""
    home = tmp_path / "home"
    (home / "bin").mkdir(parents=True)
    config = config_of(home)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", str(home)], check=True)
    site = next(Path(home, "lib").glob("python3*")) / "site-packages"
    (site / "other.pth").write_text("\n".join(each for each in sys.path if each.endswith("site-packages")))
    for each in (tmp_path, home):
        each.chmod(0o755)
    with closing(made(config.model_copy(update={"interpreter": str(home / "bin" / "python")}))) as environment:
        player = Player(environment)
        seen = player.run(
            f"ls {home}; cat {config.rows}; ls -A {home}/someone/tally-1 {config.cache} | grep -v :; "
            "python -c 'print(42)'"
        ).observation.split("\n")
    assert "bin" in seen and "instance_id" not in "".join(seen)
    assert seen[-1] == "42" and seen[-2] in ("", "someone")


def test_history_holds_one_commit_and_nothing_of_the_fix(player):
    seen = player.run(
        "git log --all --oneline | wc -l; git reflog 2>/dev/null | wc -l; git status --short; git fsck --lost-found; "
        "for o in $(git cat-file --batch-all-objects --batch-check | cut -d' ' -f1); do git cat-file -p $o; done | "
        "grep -cE 'SOLUTION|if numbers else 0|test_none'; cat .git/config | grep -c someone"
    ).observation
    assert seen.split() == ["1", "0", "0", "0", "[Exit", "code:", "1]"]


def test_a_fork_bomb_ends_and_leaves_nothing(player, environment):
    bomb = ":(){ sleep 1234 & :|:& };: ; for i in $(seq 100); do sleep 1234 & done; wait"
    for seconds in (1.5, 6, 24, 96):  # a busy machine may not have come to the limit of processes
        ran = _shortly(environment, bomb, seconds=seconds)
        assert ran.ended == "time"
        if "Resource temporarily unavailable" in ran.output:
            break
    else:
        pytest.fail(ran.output)
    assert not any("sleep 1234" in each for each in processes())
    assert player.run("echo on").observation == "on"


def test_three_gigabytes_are_refused(player):
    assert "MemoryError" in player.run("python -c 'bytearray(3 << 30)'").observation


@pytest.mark.slow
def test_memory_of_all_processes_together_is_limited(player):
    one = 'import time; kept = bytearray(b"x") * (300 << 20); time.sleep(30)'
    step = player.run(f"for i in 1 2 3 4 5 6; do python -c '{one}' & done; wait")
    assert "used more than 1024 MB" in step.observation and not step.done


@pytest.mark.parametrize(
    "command", ["while :; do :; done", "sleep 1000", "trap '' TERM INT HUP; cat /dev/zero > /dev/null"]
)
def test_an_endless_command_is_ended(player, environment, command):
    assert _shortly(environment, command, seconds=0.5).ended == "time"


def test_ten_gigabytes_of_output_reach_nobody(player, config):
    before = _resident()
    step = player.run("head -c 10000000000 /dev/zero | tr '\\0' x")
    assert (
        "wrote more than 4 MB of output" in step.observation
        and len(step.observation) < config.max_output_characters + 200
    )
    assert _resident() - before < 64 << 20


def test_files_that_fill_the_disk_end_the_episode(player, environment):
    step = player.run("for i in $(seq 10000); do head -c 7000000 /dev/zero > big$i; done")
    assert step.done and step.reward == 0 and "holds more than 24 MB" in step.observation
    assert not list(environment._workplace.folder.glob("tree-*"))


def test_one_large_file_is_cut_off(player):
    assert player.run("head -c 50000000 /dev/zero > big; stat -c %s big").observation.splitlines()[-1] == str(8 << 20)


@pytest.mark.slow
def test_temporary_files_have_their_own_room(player):
    seen = player.run("for d in /tmp /dev/shm; do for i in $(seq 20); do head -c 8000000 /dev/zero > $d/$i; done; "
                      "du -sm $d; done 2>/dev/null").observation  # fmt: skip
    assert [int(line.split()[0]) <= 65 for line in seen.splitlines()] == [True, True]


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "../../../../../../etc/passwd", "/proc/self/environ", "/testbed/../etc/passwd"]
)
def test_links_do_not_lead_the_editor_out_of_the_tree(player, target):
    player.run(f"ln -s {target} link; ln -s / all; mkfifo pipe; ln -s link again")
    for path in ("/testbed/link", "/testbed/again", "/testbed/all/etc/passwd", "/testbed/../etc/passwd", "/etc/passwd",
                 "/testbed/pipe", "etc/../../x"):  # fmt: skip
        for edit in ({"command": "view"}, {"command": "create", "file_text": "x"},
                     {"command": "str_replace", "old_str": "root", "new_str": "x"}):  # fmt: skip
            seen = player.edit(path=path, **edit).observation
            assert seen.startswith("Error: ") and "root:" not in seen


def test_links_in_the_tree_are_followed(player):
    player.run("mkdir real; ln -s real linked; ln -s /testbed/real/file absolute; echo one > real/file")
    assert "one" in player.edit(command="view", path="/testbed/linked/file").observation
    player.edit(command="str_replace", path="/testbed/absolute", old_str="one", new_str="two")
    assert player.run("cat real/file").observation == "two"


def test_killing_the_parent_kills_nothing(player):
    seen = player.run("kill -9 1; kill -TERM 1; kill -9 -1; kill -INT 1; (kill -9 $PPID); sleep 0.1; echo alive")
    assert not seen.done and player.run("echo on").observation == "on"


def test_processes_that_are_left_behind_end(player, environment):
    forked = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        time.sleep(4321)"
    player.run(f"setsid sleep 4321 & disown; (nohup sleep 4321 &) ; python -c '{forked}'; sleep 0.3")
    assert not any("sleep 4321" in each or "sleep(4321)" in each for each in processes())
    assert _pids_in(_tree(environment)) == []


def test_a_tree_that_nobody_can_walk_is_removed(player, environment):
    name = "deeper" * 8
    player.run(f"for i in $(seq 110); do mkdir {name}; cd {name}; done; chmod 000 .; cd /testbed; "
               "mkdir closed; touch closed/x; chmod 000 closed; mkfifo fifo")  # fmt: skip
    step = player.submit()
    assert step.done and not list(environment._workplace.folder.glob("tree-*"))
    assert not list(environment._workplace.folder.glob("graded-*"))


@pytest.fixture
def temporary():
    """A folder of temporary files that every user may go to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def test_killing_our_own_process_ends_its_sandboxes_and_their_trees_are_swept(temporary, config):
    script = (
        "import sys\nfrom tests.worlds.swe.world import *\n"
        f"config = SweConfig(rows={config.rows!r}, cache={config.cache!r}, held_out_from=None)\n"
        "player = Player(config.make())\nplayer.run('true')\nprint('ready', flush=True)\n"
        "player.run('setsid sleep 7654 & sleep 7654')\n"
    )
    environ = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen([sys.executable, "-c", script], env=environ, stdout=subprocess.PIPE, cwd=Path.cwd())
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        wait_until(lambda: processes().count("sleep 7654 ") == 2, "both sleep")
    finally:
        process.kill()
        process.wait()
    wait_until(lambda: not any("sleep 7654" in each for each in processes()), "both have ended")
    assert any("tree-" in each for each in files_below(temporary))
    waiting = [sys.executable, "-c", "import time; time.sleep(6543)", f"{next(temporary.iterdir())}/tree"]
    left = subprocess.Popen(waiting)  # as bubblewrap in its beginning
    # A process is a moment older than its command line.
    wait_until(lambda: any(waiting[-1] in each for each in processes()), "it is seen")
    Workplace(temporary).close()
    assert files_below(temporary) == [] and left.wait(timeout=PATIENCE_SECONDS) == -9


def _pids_in(tree):
    found = []
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and str((path / "cwd").readlink()).startswith(str(tree)):
                found.append(path.name)
        except OSError:
            continue
    return found


def _resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
