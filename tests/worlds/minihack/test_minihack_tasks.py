"""MiniHack's registered tasks: equal play in another process and batch size, or a refusal that says why."""

from __future__ import annotations

import gc
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from crl.errors import BadInput
from crl.worlds.minihack import environment as minihack
from crl.worlds.minihack.environment import MiniHackConfig, goal_of
from tests.worlds.minihack.test_minihack import MOVES, play, random_play

pytest.importorskip("minihack", reason="minihack is not installed")

PAPER = (
    "MiniHack-Room-Ultimate-5x5-v0", "MiniHack-MazeWalk-9x9-v0", "MiniHack-KeyRoom-Dark-S5-v0",
    "MiniHack-River-Narrow-v0",
)  # fmt: skip
FAMILIES = (
    *PAPER, "MiniHack-Corridor-R2-v0", "MiniHack-CorridorBattle-v0", "MiniHack-HideNSeek-Lava-v0",
    "MiniHack-ExploreMaze-Easy-v0", "MiniHack-Memento-Short-F2-v0", "MiniHack-Labyrinth-Small-v0",
    "MiniHack-Sokoban1a-v1", "MiniHack-Eat-v0", "MiniHack-Freeze-Horn-Restricted-v0",
    "MiniHack-WoD-Hard-Restricted-v0", "MiniHack-Quest-Easy-v0", "MiniHack-LavaCross-Levitate-Restricted-v0",
)  # fmt: skip
NEEDS_MORE = ("Boxoban", "LavaCrossing", "SimpleCrossing", "MultiRoom", "Navigation-Custom", "Skill-Custom")
"""Tasks that need the package minigrid, downloaded maps, or a level of one's own."""
SEEDS = (3, 1_000_004)


def digests(task_id, width):
    """Of each seed's starts and 20 turns of random play, `width` slots at a time."""
    environment = MiniHackConfig(id=task_id, max_turns=20, hints=task_id not in PAPER, held_out_from=None).make()
    found = []
    for at in range(0, len(SEEDS), width):
        starts, steps = random_play(environment, list(SEEDS[at : at + width]))
        found += [hashlib.sha256(repr(each).encode()).hexdigest() for each in zip(starts, steps, strict=True)]
    environment.close()
    return found


@pytest.mark.parametrize("which", ["1a", "2b", "4b"])
def test_every_sokoban_says_what_it_asks_for(which):
    assert "Fill every pit" in goal_of(f"MiniHack-Sokoban{which}-v1")


WITHOUT_STAIRS = (
    "Levitate-Random-Full",
    "Freeze-Wand-Full",
    "Freeze-Horn-Restricted",
    "Freeze-Random-Full",
    "WoD-Easy-Full",
)
WITH_STAIRS = ("Freeze-Lava-Full", "WoD-Pro-Full", "WoD-Hard-Restricted", "LavaCross-Levitate-Ring-Inv-Full")


@pytest.mark.parametrize("task", WITHOUT_STAIRS + WITH_STAIRS)
def test_a_goal_names_stairs_where_they_are_what_wins(task):
    environment = MiniHackConfig(id=f"MiniHack-{task}-v0", held_out_from=None).make()
    start = environment.reset_many([0])[0]
    assert (environment._pool[0][0].reward_manager is None) == (task in WITH_STAIRS)
    environment.close()
    assert ("(>)" in start.goal) == (task in WITH_STAIRS)
    assert ("> is" in start.observation or "No > in sight" in start.observation) == (task in WITH_STAIRS)


def test_levitation_is_won_as_its_goal_says():
    environment = MiniHackConfig(id="MiniHack-Levitate-Potion-Fixed-v0", max_turns=10, held_out_from=None).make()
    environment.reset_many([0])
    for action in ("northwest", "northwest", "pick up", "quaff"):
        assert not environment.step_many({0: action})[0].done
    step = environment.step_many({0: "item f"})[0]
    environment.close()
    assert step.success and "float" in step.observation


@pytest.mark.slow
def test_random_play_is_equal_in_another_process_and_batch_size():
    program = (
        "from tests.worlds.minihack.test_minihack_tasks import FAMILIES, digests\n"
        "print([digests(task_id, 1) for task_id in reversed(FAMILIES)][::-1])"
    )
    here = [digests(task_id, len(SEEDS)) for task_id in FAMILIES]
    found = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == str(here)
    assert len({digest for each in here for digest in each}) == len(SEEDS) * len(FAMILIES)


@pytest.mark.slow
def test_every_registered_task_plays_or_is_refused_before_work_starts():
    known = minihack._registry()
    assert len(known) >= 161
    refused = {}
    for task_id in sorted(known):
        try:
            environment = MiniHackConfig(id=task_id, max_turns=20, held_out_from=None).make()
        except BadInput as error:
            refused[task_id] = str(error)
            continue
        starts, steps = random_play(environment, [0])
        asks_for_stairs = environment._pool[0][0].reward_manager is None or "ExploreMaze" in task_id
        assert ("(>)" in starts[0].goal) == asks_for_stairs, "what else is rewarded is the goal"
        environment.close()
        assert starts[0].actions and "@" in starts[0].observation, task_id
        last = steps[0][-1]
        assert last.done and last.error is None and all(step.legal for step in steps[0]), task_id
        assert len(steps[0]) == 20 or last.stop_reason != "turn_limit", task_id
    assert all(task_id.removeprefix("MiniHack-").startswith(NEEDS_MORE) for task_id in refused), sorted(refused)
    for told in refused.values():
        assert "cannot be built: " in told and "What to do: " in told
        reasons = "minigrid", "download maps", "template for levels", "AssertionError in MiniHack-"
        assert any(word in told for word in reasons), told


@pytest.mark.parametrize("task_id", ["MiniHack-MultiRoom-N2-v0", "MiniHack-MultiRoom-N4-Locked-v0"])
def test_rooms_that_minigrid_draws_follow_from_the_seed(task_id):
    pytest.importorskip("minigrid", reason="minigrid is not installed (extra minigrid)")
    first, second = digests(task_id, 1), digests(task_id, len(SEEDS))
    assert first == second and len(set(first)) == len(SEEDS)


def test_the_papers_tasks_offer_their_actions_and_a_legend_of_what_is_seen():
    for task_id in PAPER:
        environment = MiniHackConfig(id=task_id, max_turns=30, hints=False).make()
        start = environment.reset_many([0])[0]
        environment.close()
        more = ("pick up", "apply") if "KeyRoom" in task_id else ()
        assert start.actions == (*MOVES, *more)
        rows, told = start.observation.split("\nLegend: ")
        assert "@" in rows and told.startswith("@ you") and "(>)" in start.goal


def test_all_that_is_known_of_a_wide_map_is_shown_and_explained():
    environment = MiniHackConfig(
        id="MiniHack-MazeWalk-Mapped-45x19-v0", max_turns=9, hints=False, held_out_from=None
    ).make()
    start = environment.reset_many([3])[0]
    environment.close()
    rows, told = start.observation.split("\nLegend: ")
    width, height = max(len(row) for row in rows.split("\n")), len(rows.split("\n"))
    assert (width, height) >= (45, 18) and ">" in rows and "> stairs down" in told


RECORDED = {
    ("MiniHack-Room-Ultimate-5x5-v0", True): "20c158e8b86396be",
    ("MiniHack-Room-Ultimate-5x5-v0", False): "53584e8ff5ff2186",
    ("MiniHack-MazeWalk-9x9-v0", True): "a4e5cb30540fb264",
    ("MiniHack-KeyRoom-Dark-S5-v0", False): "59b5fb938ea441c0",
}
"""Of the tasks and hints of recorded runs, studies and benchmarks, what 8 games show."""


@pytest.mark.parametrize(("task_id", "hints"), RECORDED)
def test_what_recorded_runs_were_shown_is_still_shown(task_id, hints):
    environment = MiniHackConfig(id=task_id, max_turns=10, hints=hints).make()
    starts, steps = random_play(environment, [0, 1, 2, 3, 1_000_000, 1_000_001, 1_000_002, 1_000_003])
    environment.close()
    shown = [start.observation for start in starts] + [step.observation for each in steps for step in each]
    assert hashlib.sha256("\n\n".join(shown).encode()).hexdigest()[:16] == RECORDED[task_id, hints]


def test_what_the_fog_hides_is_seen_only_from_near():
    environment = MiniHackConfig(id="MiniHack-MazeWalk-9x9-v0", max_turns=60).make()
    starts, steps = play(environment, list(range(4)), lambda slot, actions: environment.oracle(slot))
    environment.close()
    assert all(each[-1].success for each in steps)
    first = [len("".join(start.observation.split())) for start in starts]
    most = [max(len("".join(step.observation.split())) for step in each) for each in steps]
    assert all(before <= after for before, after in zip(first, most, strict=True))
    assert sum(most) > 1.5 * sum(first), "the map grows while it is explored"
    assert sum(">" in start.observation.split("No >")[0] for start in starts) < len(starts)


def test_a_question_names_the_answers_that_it_takes():
    environment = MiniHackConfig(id="MiniHack-Eat-Fixed-v0", max_turns=30, held_out_from=None).make()
    environment.reset_many([0])
    step = environment.step_many({0: "wield"})[0]
    assert step.observation.endswith("\nAnswer with one of: " + ", ".join(step.actions) + ".")
    assert {"item a", "cancel"} <= set(step.actions)
    step = environment.step_many({0: "cancel"})[0]
    assert "Answer with one of" not in step.observation and "north" in step.actions
    environment.close()


def test_an_action_that_presses_keys_without_end_is_a_turn_that_changes_nothing(monkeypatch):
    """A key room walks into its door until that is open: where it never opens, the action neither hangs nor ends it."""
    environment = MiniHackConfig(id="MiniHack-KeyRoom-Dark-S5-v0", max_turns=30).make()
    start = environment.reset_many([1])[0]
    task = environment._slots[0].env

    def endless(action):
        while True:
            task.nethack.step(27)

    with monkeypatch.context() as patched:
        patched.setattr(task, "step", endless)
        step = environment.step_many({0: "apply"})[0]
    assert (step.error, step.legal, step.done, step.observation) == (None, True, False, start.observation)
    assert environment.step_many({0: environment.oracle(0)})[0].observation != start.observation, "it plays on"
    environment.reset_many([1])
    for _ in range(1100):  # a game that only begins has no end to reach
        environment._slots[0].ending._watched(27)
    environment.close()


def memory_files():
    """Open files that NLE keeps its library in, one an instance."""
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return sum("memfd:nle" in str(link.readlink()) for link in links)


def test_no_instance_outlives_its_use(monkeypatch):
    gc.collect()
    before = memory_files()
    environment = MiniHackConfig(held_out_from=None).make()
    environment.reset_many([1, 2])
    assert memory_files() > before
    held = memory_files()
    with monkeypatch.context() as patched:
        patched.setattr(environment._slots[0].env, "step", lambda action: 1 / 0)
        assert environment.step_many({0: "north"})[0].error == "environment_ZeroDivisionError"
    assert memory_files() == held - 1, "the instance of a slot that broke is closed"
    environment.reset_many([1, 2])
    del environment
    gc.collect()
    assert memory_files() == before, "an environment that nobody closed is freed with its instances"


@pytest.mark.parametrize("task_id", ["MiniHack-Navigation-Custom-v0", "MiniHack-Skill-Custom-v0"])
def test_a_template_is_refused_as_one(task_id):
    with pytest.raises(BadInput, match="template for levels of one's own") as caught:
        MiniHackConfig(id=task_id).make()
    assert "register a task" in str(caught.value)


def test_a_task_without_an_action_that_has_a_name_is_refused(monkeypatch):
    monkeypatch.setattr(minihack, "action_names", lambda registered: {})
    with pytest.raises(BadInput, match="registers no action that can be offered by name") as caught:
        MiniHackConfig().make()
    assert "other actions" in str(caught.value)


def test_an_unknown_id_is_told_its_near_names():
    with pytest.raises(BadInput, match="unknown MiniHack task") as caught:
        MiniHackConfig(id="MiniHack-Keyroom-Dark-5-v0").make()
    assert "MiniHack-KeyRoom-Dark-S5-v0" in str(caught.value)
