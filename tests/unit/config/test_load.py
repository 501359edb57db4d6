"""Experiment files: what is read, what is refused, and how it is said."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from crl.config import ENVIRONMENTS, SeedRange
from crl.config.load import load_experiment, parse_experiment, runs_root
from crl.errors import BadInput

CONF = Path(__file__).parents[3] / "conf"


def refused(tmp_path, change=None, overrides=None):
    data = yaml.safe_load((CONF / "tiny.yaml").read_text())
    data["method"]["prompts"] = yaml.safe_load((CONF / "prompts" / "tiny.yaml").read_text())
    if change is not None:
        change(data)
    path = tmp_path / "changed.yaml"
    path.write_text(yaml.safe_dump(data))
    with pytest.raises(BadInput) as caught:
        load_experiment(path, overrides)
    assert caught.value.exit_code == 2
    return str(caught.value)


OTHERS = {"prompts", "study", "warm"}
SHIPPED = sorted(found for path in CONF.rglob("*.yaml") if (found := path.relative_to(CONF)).parts[0] not in OTHERS)


@pytest.mark.parametrize("name", SHIPPED, ids=str)
def test_every_experiment_that_ships_is_valid(name):
    from crl.rounds.ready import check_placeholders

    kinds = {
        family["environment"]["kind"] for family in yaml.safe_load((CONF / name).read_text())["method"]["families"]
    }
    if missing := kinds - {*ENVIRONMENTS.names()}:
        pytest.skip(f"no environment is registered as {', '.join(sorted(missing))}")
    check_placeholders(load_experiment(CONF / name).method)


def test_the_digest_is_of_the_method_and_nothing_else():
    first = load_experiment(CONF / "tiny.yaml")
    same = load_experiment(CONF / "tiny.yaml", {"runtime.retries": 7, "name": "other"})
    other = load_experiment(CONF / "tiny.yaml", {"method.seed": "2"})
    assert first.method.digest() == same.method.digest() != other.method.digest()


def test_the_prompts_are_part_of_the_method():
    changed = load_experiment(CONF / "tiny.yaml", {"method.prompts.actor.system": "Act."})
    assert changed.method.prompts["actor"].system == "Act."
    assert changed.method.digest() != load_experiment(CONF / "tiny.yaml").method.digest()


def test_an_unknown_key_is_named_with_the_one_that_was_meant(tmp_path):
    said = refused(tmp_path, lambda data: data["method"]["rollout"].update(group_sice=4))
    assert "method.rollout.group_sice: unknown key; did you mean 'group_size'?" in said


def test_an_unknown_key_of_an_environment_lists_its_keys(tmp_path):
    said = refused(tmp_path, lambda data: data["method"]["families"][0]["environment"].update(sizes=3))
    assert "sizes: unknown key" in said and "size_min" in said


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"method.rollout.group_size": "3"}, "Expected: an even number"),
        ({"method.families.0.evaluation_seeds.start": "10"}, "overlap"),
        ({"method.seed": "-1"}, "greater than or equal to 0"),
        ({"method.families.4.groups": "1"}, "no index"),
        ({"method.families.laek.groups": "1"}, "lake is number 0"),
        ({"method.roles.actr.model": "tiny"}, "no role 'actr'; did you mean 'actor'?"),
        ({"metod.seed": "1"}, "did you mean 'method'?"),
        ({"method.recipe.bank.capcity": "1"}, "did you mean 'capacity'?"),
        ({"method.seed": "{"}, "not YAML"),
        ({"method.prompts": "nothing"}, "no prompt file 'nothing'"),
        ({"name": "With Spaces"}, "name"),
    ],
)
def test_values_that_make_no_sense_are_refused_with_a_reason(tmp_path, overrides, words):
    assert words in refused(tmp_path, overrides=overrides)


@pytest.mark.parametrize(
    "recipe",
    [
        {"kind": "baseline"},
        {"guided_share": 0.0},
        {"guided_share": 1.0},
        {"guided_share": 0.4},
        {"guided_share": 0.5, "guided_share_end": 0.0, "guided_share_rounds": 3},
    ],
    ids=str,
)
def test_an_odd_group_is_refused_only_where_it_is_halved(recipe):
    overrides = {f"method.recipe.{key}": str(value) for key, value in recipe.items()}
    made = load_experiment(CONF / "tiny.yaml", {"method.rollout.group_size": "5", **overrides})
    assert made.method.rollout.group_size == 5


def realms(**family):
    """The shipped realms with their one repeated family changed."""
    data = yaml.safe_load((CONF / "realms.yaml").read_text())
    data["method"]["families"][0] |= family
    return data


def parsed(data, overrides=None):
    return parse_experiment(data, overrides, base=CONF, where="realms").method.families


def test_a_repeated_family_is_written_out_with_its_number_in_every_text():
    written = realms(repeat=3)
    families = parsed(written)
    assert [family.name for family in families] == ["r0", "r1", "r2"]
    assert [family.environment.realm for family in families] == [0, 1, 2]
    rest = {
        (family.groups, family.environment.world, family.train_seeds, family.evaluation_seeds) for family in families
    }
    assert len(rest) == 1, "what has no {index} is the same in all"
    assert written == realms(repeat=3), "what was read is left as it was"
    # By hand it is the same method, digest included.
    by_hand = realms()
    plain = {key: value for key, value in by_hand["method"]["families"][0].items() if key != "repeat"}
    by_hand["method"]["families"] = [
        {**plain, "name": f"r{number}", "environment": {**plain["environment"], "realm": number}} for number in range(3)
    ]
    twice = [parse_experiment(data, base=CONF, where="realms").method.digest() for data in (written, by_hand)]
    assert twice[0] == twice[1]


def test_families_beside_a_repeated_one_stay_where_they_are():
    data = realms(repeat=2)
    lake = {"name": "lake", "environment": {"kind": "frozenlake"}}
    data["method"]["families"] = [lake, *data["method"]["families"], {**lake, "name": "pond_{index}"}]
    with pytest.raises(BadInput, match=r"families\.3\.name"):  # only a repeated family has a number
        parsed(data)
    data["method"]["families"][2]["name"] = "pond"
    assert [family.name for family in parsed(data)] == ["lake", "r0", "r1", "pond"]


@pytest.mark.parametrize("repeat", [0, -1, 1001, 2.0, "8", None, True, [2]], ids=repr)
def test_a_repeat_that_is_no_number_of_families_is_refused(repeat):
    with pytest.raises(BadInput) as caught:
        parsed(realms(repeat=repeat))
    assert f"repeat is {repeat!r}" in str(caught.value) and "a whole number from 1 to 1000" in str(caught.value)
    assert caught.value.exit_code == 2


def test_a_repeated_family_without_its_number_is_refused():
    with pytest.raises(BadInput, match="different names"):
        parsed(realms(name="r"))


def test_overrides_stay_as_they_were_given():
    families = [{"name": "lake", "environment": {"kind": "frozenlake"}, "groups": 2}]
    overrides = {"method.families": families, "method.families.0.groups": 1, "method.prompts": "tiny"}
    for _ in range(2):
        assert load_experiment(CONF / "tiny.yaml", overrides).method.families[0].groups == 1
        assert families[0]["groups"] == 2


def test_overrides_act_before_a_repeated_family_is_written_out():
    changes = {
        "method.families.0.repeat": "2", "method.families.0.groups": "8", "method.families.0.environment.world": "7",
        "method.families.0.name": "'w{index}'",
    }  # fmt: skip
    families = load_experiment(CONF / "realms.yaml", changes).method.families
    assert [(family.name, family.groups, family.environment.world) for family in families] == [
        ("w0", 8, 7),
        ("w1", 8, 7),
    ]
    with pytest.raises(BadInput, match="'1' is no index"):
        load_experiment(CONF / "realms.yaml", {"method.families.1.groups": "8"})


def test_a_file_that_is_not_there_lists_those_that_are():
    with pytest.raises(BadInput) as caught:
        load_experiment(CONF / "tinny.yaml")
    assert "tiny.yaml" in str(caught.value)


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [", "\x00"])
def test_a_file_that_is_no_mapping_is_refused(tmp_path, content):
    path = tmp_path / "broken.yaml"
    path.write_text(content)
    with pytest.raises(BadInput):
        load_experiment(path)


def test_seed_ranges_overlap_where_they_share_a_seed():
    first = SeedRange(start=10, count=5)
    assert first.overlaps(SeedRange(start=14, count=1)) and SeedRange(start=0, count=11).overlaps(first)
    assert not first.overlaps(SeedRange(start=15, count=1)) and not SeedRange(start=0, count=10).overlaps(first)


def test_runs_lie_where_the_experiment_or_the_environment_says(monkeypatch, tmp_path):
    monkeypatch.delenv("CRL_RUNS", raising=False)
    assert runs_root() == Path("runs")
    monkeypatch.setenv("CRL_RUNS", str(tmp_path))
    assert runs_root() == tmp_path
    chosen = load_experiment(CONF / "tiny.yaml", {"runtime.runs": "elsewhere"})
    assert runs_root(chosen) == Path("elsewhere")
    at_home = load_experiment(CONF / "tiny.yaml", {"runtime.runs": "~/runs"})
    monkeypatch.setenv("HOME", str(tmp_path))
    assert runs_root(at_home) == tmp_path / "runs", "no shell expands what a file says"
    monkeypatch.setenv("CRL_RUNS", "~/more")
    assert runs_root() == tmp_path / "more"
    monkeypatch.setenv("CRL_RUNS", "")
    assert runs_root() == Path("runs"), "a variable without a value is none"


@pytest.mark.parametrize("name", ["tiny", "quickstart", "realms"])
def test_a_run_that_was_begun_before_a_key_was_added_goes_on(name: str):
    """A key that nobody sets is in no digest: a changed method is another experiment, and its run is refused."""
    dumped = load_experiment(CONF / f"{name}.yaml").method.model_dump(mode="json")
    assert {"overlap", "importance_sampling_correction"}.isdisjoint(
        dumped | dumped["recipe"] | dumped["recipe"].get("actor_objective", {})
    )
    assert {"batch", "environment_lag"}.isdisjoint(dumped["rollout"])
    own = {"group_size", "max_turns", "sampling", "prompts", "reward", "bank"}
    assert all(own.isdisjoint(family) for family in dumped["families"])
