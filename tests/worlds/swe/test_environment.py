"""Software engineering as an environment: tools, verdicts, the oracle, and which row a seed plays."""

from __future__ import annotations

import json
from contextlib import closing

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crl.config import FamilyConfig
from crl.envs import check_environment
from crl.errors import BadInput
from crl.protocols import FreeText, Leveled, StopReason, ToolCalls
from crl.worlds.swe.calls import BASH, BadCall, call_of
from crl.worlds.swe.sources import split
from tests.worlds.swe.world import Player, bash, call, config_of, made, make_row, needs_bwrap

pytestmark = needs_bwrap


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("swe")


@pytest.fixture(scope="module")
def config(folder):
    return config_of(folder, max_turns=12)


@pytest.fixture(scope="module")
def environment(config):
    with closing(made(config)) as environment:
        yield environment


@pytest.fixture
def player(environment):
    return Player(environment)


def test_an_episode_by_hand(player):
    assert "wrong in tally-1" in player.start.goal and isinstance(player.start.actions, ToolCalls)
    assert player.start.observation == "The repository is in /testbed: README.md, tally.py, tests/"
    seen = player.run("python -c 'from tally import mean; print(mean([1, 3]))'; exit 3")
    assert (seen.observation, seen.legal, seen.done) == ("1.3333333333333333\n[Exit code: 3]", True, False)
    assert "    11\t    return total" in player.edit(command="view", path="/testbed/tally.py").observation
    edited = player.edit(
        command="str_replace", path="/testbed/tally.py", old_str="(len(numbers) + 1)",
        new_str="len(numbers) if numbers else 0",
    )  # fmt: skip
    assert "is edited" in edited.observation and "if numbers else 0" in edited.observation
    over = player.submit()
    assert (over.done, over.success, over.reward, over.stop_reason) == (True, True, 1.0, StopReason.success)
    assert over.observation == "Submitted. Hidden tests that failed before: 2 of 2 pass now. Others: 1 of 1 pass."
    with pytest.raises(RuntimeError, match="slot 0 is done"):
        player.submit()


def test_half_a_repair_is_worth_nothing(player):
    player.run("sed -i 's/ + 1)/)/' tally.py")
    over = player.submit()
    assert (over.success, over.reward, over.stop_reason) == (False, 0.0, StopReason.failure)
    assert "1 of 2 pass now. Others: 1 of 1 pass." in over.observation


def test_what_passed_before_has_to_pass_still(player):
    player.run("printf 'def mean(n):\\n    return 2 if n else 0\\ndef total(n):\\n    return 0\\n' > tally.py")
    over = player.submit()
    assert over.reward == 0 and "2 of 2 pass now. Others: 0 of 1 pass." in over.observation


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (None, "no call of a tool"),
        (call("browse", page="x"), "no tool 'browse'"),
        (call("execute_bash"), "lacks command"),
        (call("execute_bash", command=3), "has to be a text"),
        (call("str_replace_editor", command="paint", path="/testbed/x"), "has to be one of"),
        (call("str_replace_editor", command="insert", path="/testbed/x", insert_line="a"), "not understood"),
    ],
)
def test_what_is_no_call_spends_a_turn(player, action, said):
    step = player.do(action)
    assert not step.legal and said in step.feedback and not step.done


def test_the_turn_limit_is_a_failure_without_a_verdict(player, config):
    steps = [player.run("true") for _ in range(config.max_turns)]
    assert [step.done for step in steps] == [False] * (config.max_turns - 1) + [True]
    assert steps[-1].stop_reason is StopReason.turn_limit and steps[-1].reward == 0


def test_nothing_stays_of_an_episode_but_its_tree(environment, player):
    player.run("mkdir -p deep/er; cd deep; echo 1 > /tmp/kept; export KEPT=1; sleep 60 &")
    seen = player.run("pwd; cat /tmp/kept 2>/dev/null; echo KEPT=$KEPT; ls; ps aux | grep -c [s]leep").observation
    assert seen == "/testbed\nKEPT=\nREADME.md\ndeep\ntally.py\ntests\n0\n[Exit code: 1]"
    again = Player(environment)
    assert "deep" not in again.run("ls").observation


def test_long_output_is_cut_in_the_middle(player, config):
    seen = player.run("seq 100000").observation
    assert len(seen) < config.max_output_characters + 100
    assert seen.startswith("1\n2\n") and seen.endswith("\n100000") and "characters left out" in seen


def test_two_slots_have_two_trees(environment):
    environment.reset_many([0, 0])
    environment.step_many({0: bash("echo mine > mine")})
    assert "mine" not in environment.step_many({1: bash("ls")})[1].observation


def test_the_environment_passes_the_check(config, environment):
    check_environment(config)
    assert isinstance(environment, Leveled)


@pytest.mark.parametrize("command", ["echo \0", "echo " + "é" * 70_000])
def test_a_command_that_no_process_can_be_given_is_refused_as_a_call(command):
    with pytest.raises(BadCall, match="without NUL, and of at most 120,000 bytes"):
        call_of(json.dumps({"name": BASH, "arguments": {"command": command}}), as_text=False)


def test_half_of_a_surrogate_pair_costs_a_turn(environment):
    environment.reset_many([0])
    call = json.dumps({"name": BASH, "arguments": {"command": "echo \ud800"}})
    (step,) = environment.step_many({0: call}).values()
    assert not step.legal and step.error is None and "without surrogates" in (step.feedback or "")


@pytest.mark.parametrize("calls", ["tools", "text"])
def test_the_oracle_replays_the_reference_fix(folder, config, calls):
    with closing(made(config.model_copy(update={"calls": calls}))) as environment:
        start = environment.reset_many([5])[0]
        assert isinstance(start.actions, FreeText if calls == "text" else ToolCalls)
        steps = []
        assert not environment.step_many({0: None})[0].legal  # spends a turn and changes nothing
        while not steps or not steps[-1].done:
            steps.append(environment.step_many({0: environment.oracle(0)})[0])
        assert environment.oracle(0) is None
    assert steps[-1].reward == 1 and all(step.legal for step in steps)


def test_a_row_on_its_own_has_nothing_to_hold_out(tmp_path):
    with pytest.raises(BadInput, match="are held out"):
        config_of(tmp_path, held_out_from=100).make()


def test_seeds_and_rows(tmp_path):
    from crl.worlds.swe.rows import Row, row_of

    record = make_row(tmp_path)

    def row(number: int, **more: str) -> Row:
        return row_of({**record, "instance_id": f"t-{number}", "problem_statement": f"Wrong {number}.", **more}, "here")

    rows = [row(number) for number in range(40)]
    tasks = split(rows, None, 100, where="here")
    count = len(tasks.evaluation)
    assert len(tasks.training) == 40 - count and 3 < count < 20
    held_out = {tasks.of(100 + seed).instance_id for seed in range(count)}
    assert len(held_out) == count and not held_out & {tasks.of(seed).instance_id for seed in range(100)}
    named = [row(number, split="train" if number % 2 else "dev") for number in range(4)]
    assert [row.instance_id for row in split(named, None, 9, where="").evaluation] == ["t-0", "t-2"]
    with pytest.raises(BadInput, match="are held out"):
        split(rows[:3], rows, 9, where="here")
    again = [row(number + 100, problem_statement=rows[number].problem_statement) for number in range(40)]
    assert {each.content for each in split([*rows, *again], None, 9, where="").training}.isdisjoint(
        each.content for each in tasks.evaluation
    )


def test_the_family_knows_its_turn_limit_and_held_out_tasks(tmp_path):
    records = [make_row(tmp_path, f"tally-{number}") for number in range(4)]
    config = config_of(tmp_path, records, held_out_from=1000)
    family = FamilyConfig(name="swe", environment=config.model_dump(), train_seeds={"start": 0, "count": 1000},
                          evaluation_seeds={"start": 1000, "count": 1})  # fmt: skip
    assert family.turn_limit == 50 and family.environment.held_out_levels == 1


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=8), st.sampled_from([None, "train", "test"])), min_size=20, max_size=40,
                unique_by=lambda each: each[0]), st.data())  # fmt: skip
def test_a_row_that_goes_moves_no_other_between_the_sides(items, drawn):
    from crl.worlds.swe.rows import row_of

    def sides(kept):
        shared = {"repo": "a/b", "base_commit": "c", "patch": "d", "test_patch": "e", "FAIL_TO_PASS": ["f"]}
        records = [
            {**shared, "instance_id": f"t-{at}", "problem_statement": f"x {text}", **({"split": side} if side else {})}
            for at, (text, side) in enumerate(kept)
        ]
        rows = [row_of(record, "here") for record in records]
        tasks = split(rows, None, 9, where="here")
        return {row.content for row in tasks.training}, {row.content for row in tasks.evaluation}

    items = [("always one", "train"), ("and one", "test"), *items]
    training, evaluation = sides(items)
    gone = drawn.draw(st.integers(2, len(items) - 1))
    left = [*items[:gone], *items[gone + 1 :]]
    drawn.draw(st.randoms(use_true_random=False)).shuffle(left)
    after = sides(left)
    assert after[0] <= training and after[1] <= evaluation
    assert len(after[0]) + len(after[1]) == len(training) + len(evaluation) - 1
