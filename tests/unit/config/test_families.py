"""What a task family may have of its own: each key as it is read, what it changes, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.config import FamilyReward
from crl.config.load import parse_experiment
from crl.errors import BadInput
from crl.preflight.estimate import estimate
from crl.recipes.complementary.ready import check_room
from crl.rounds.proposal import capacities_of, partitions_of
from crl.rounds.ready import check_placeholders
from crl.rounds.waves import together

CONF = Path(__file__).parents[3] / "conf"
ENDLESS = "tests.unit.recipes.endless:EndlessConfig"


def two(second: dict[str, Any], changes: dict[str, Any] | None = None) -> Any:
    """The tiny experiment with a second family, `pond`, that has some keys of its own."""
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    lake = data["method"]["families"][0]
    data["method"]["families"] = [lake, {**lake, "name": "pond", **second}]
    return parse_experiment(data, changes, base=CONF, where="two families")


def refused(second: dict[str, Any], changes: dict[str, Any] | None = None) -> BadInput:
    with pytest.raises(BadInput) as caught:
        two(second, changes)
    return caught.value


def test_what_a_family_does_not_set_is_that_of_all():
    method = two({"group_size": 6, "sampling": {"temperature": 0.5, "constrain": "actions"}}).method
    lake, pond = method.families
    assert (method.group_size(lake), method.group_size(pond)) == (4, 6)
    shared = method.role("actor").sampling
    assert method.sampling("actor", "lake") == shared == method.sampling("actor", "nobody")
    own = method.sampling("actor", "pond")
    assert (own.temperature, own.constrain, own.max_new_tokens) == (0.5, "actions", shared.max_new_tokens)


def test_a_key_that_is_set_is_part_of_the_method_and_one_that_is_not_is_left_out():
    plain, sized = two({}).method, two({"group_size": 6}).method
    assert plain.digest() != sized.digest() == two({"group_size": 6}).method.digest()
    dumped = two({"sampling": {"top_k": 5}, "reward": {"failure": -1}, "bank": {"capacity": 3}}).method.model_dump()
    pond = dumped["families"][1]
    assert pond["sampling"] == {"top_k": 5} and pond["bank"] == {"capacity": 3}
    assert pond["reward"] == {"failure": -1.0, "scale": 1.0, "shift": 0.0} and "group_size" not in pond


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ({"group_size": 5}, "method.families.1.group_size"),
        ({"max_turns": 9}, "environment.max_turns"),
        ({"reward": {"success": -1, "failure": 1}}, "must be worth more"),
        ({"reward": {"scale": -1}}, "greater than 0"),
        ({"sampling": {"temprature": 1}}, "did you mean 'temperature'"),
        ({"bank": {"partition": "mine"}}, "'shared' or 'family'"),
        ({"prompts": "nothing"}, "method.families.1.prompts: there is no prompt file 'nothing'"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_makes_no_sense_is_refused(second, words):
    error = refused(second)
    assert words in f"{error} {error.where}" and error.exit_code == 2


def test_a_family_may_not_be_sampled_as_its_engine_cannot():
    changes = {"method.roles.actor.engine": {"kind": "vllm"}}
    error = refused({"sampling": {"temperature": 0.005}}, changes)
    assert error.where == "method.families.1.sampling.temperature" and error.found.startswith("family pond: ")
    assert "0.005" in error.found
    asking = {"method.rollout.search_and_ask": {"uses": 1}, "method.prompts": "paper_ask"}
    assert "nothing else" in str(refused({"sampling": {"constrain": "actions"}}, asking))


def test_prompts_of_a_family_are_a_file_or_written_out_and_the_others_are_shared():
    method = two({"prompts": "minihack"}).method
    assert method.prompts_of("pond")["actor"].system.startswith("You walk on a map")
    assert method.prompts_of("lake")["actor"] == method.prompts["actor"]
    assert method.own_prompts("distill") == {"pond": method.families[1].prompts["distill"]}
    some = two({"prompts": {"actor": yaml.safe_load((CONF / "prompts/minihack.yaml").read_text())["actor"]}}).method
    assert some.prompts_of("pond")["actor"] == method.prompts_of("pond")["actor"]
    assert some.prompts_of("pond")["distill"] == some.prompts["distill"] and not some.own_prompts("distill")


def test_prompts_of_a_family_are_overridden_as_those_of_all_are():
    changed = two({}, {"method.families.1.prompts.actor.system": "Act.", "method.families.1.prompts": "minihack"})
    pond = changed.method.prompts_of("pond")
    assert pond["actor"].system == "Act." and pond["actor"].examples
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    data["method"]["families"][0] |= {"repeat": 2, "name": "l{index}", "prompts": "tiny{index}"}
    with pytest.raises(BadInput, match="no prompt file 'tiny0'"):
        parse_experiment(data, base=CONF, where="repeated")


def test_the_prompts_of_every_family_are_checked_before_work_starts():
    changes = {"method.families.1.prompts": "minihack", "method.families.1.prompts.distill.first": "'{weather}'"}
    with pytest.raises(BadInput, match="weather") as caught:
        check_placeholders(two({}, changes).method)
    assert caught.value.where == "family pond, prompts: distill.first"
    short = {"method.roles.actor.context": 128}
    with pytest.raises(BadInput, match="first prompt of family pond takes") as caught:
        check_room(two({"prompts": "minihack"}, short).method)
    assert "prompts.actor" in str(caught.value.where) and "family pond" in str(caught.value.where)
    # As long as its answers are short there is room; with longer ones of its own there is none.
    check_room(two({}).method)
    with pytest.raises(BadInput, match="family pond"):
        check_room(two({"sampling": {"max_new_tokens": 2040}}).method)


def test_rewards_by_a_convention():
    map_ = FamilyReward(success=1, failure=-1)
    assert [map_.of(0.3, success=won) for won in (True, False)] == [1, -1]
    assert FamilyReward(scale=2, shift=-1).of(0.25, success=False) == -0.5
    assert FamilyReward(failure=0).of(0.7, success=False) == 0 and FamilyReward(failure=0).of(0.7, success=True) == 0.7


@pytest.mark.parametrize(
    ("scope", "own", "expected"),
    [
        ("family", (None, None, None), [("a",), ("b",), ("c",)]),
        ("bank", (None, None, None), [None, None, None]),
        ("family", ("shared", "shared", None), [("a", "b"), ("a", "b"), ("c",)]),
        ("bank", ("family", None, None), [("a",), ("b", "c"), ("b", "c")]),
        ("family", ("shared", "shared", "shared"), [None, None, None]),
        ("bank", ("family", "family", None), [("a",), ("b",), ("c",)]),
    ],
)
def test_families_share_the_bank_or_keep_to_their_own(scope, own, expected):
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    lake = data["method"]["families"][0]
    data["method"]["families"] = [
        {**lake, "name": name, **({} if partition is None else {"bank": {"partition": partition}})}
        for name, partition in zip("abc", own, strict=True)
    ]
    changes = {"method.recipe.retrieval.scope": scope}
    method = parse_experiment(data, changes, base=CONF, where="three").method
    assert list(partitions_of(method).values()) == expected and capacities_of(method) == {}
    data["method"]["families"][1]["bank"] = {"capacity": 7}
    assert capacities_of(parse_experiment(data, changes, base=CONF, where="three").method) == {"b": 7}


def test_families_share_waves_where_they_are_sampled_alike():
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    lake = data["method"]["families"][0]
    hot = {"sampling": {"temperature": 2.0}}
    data["method"]["families"] = [{**lake, "name": n, **(hot if n in "bd" else {})} for n in "abcd"]
    mixed = parse_experiment(data, {"method.rollout.mixed_waves": True}, base=CONF, where="four").method
    assert together(mixed) == {"a": "a", "b": "b", "c": "a", "d": "b"}
    assert together(parse_experiment(data, base=CONF, where="four").method) == {n: n for n in "abcd"}


def test_the_estimate_counts_every_family_by_its_own_sizes():
    plain, large = (estimate(two({"group_size": size})) for size in (4, 8))
    assert large.round_bytes * 2 == plain.round_bytes * 3, "4 groups of 4 and 4 of 8, instead of 8 of 4"
    longer = estimate(two({"sampling": {"max_new_tokens": 40}}))
    assert longer.updates["actor"].head > plain.updates["actor"].head
    endless = {"environment": {"kind": ENDLESS}}
    limited = two({**endless, "max_turns": 5}).method.families[1]
    assert (limited.turn_limit, two(endless).method.families[1].turn_limit) == (5, None)
