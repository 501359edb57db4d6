"""Study files: what is read, what is refused and how it is said, and the runs that follow from one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.config.load import load_experiment
from crl.config.trackers import TrackerChoice
from crl.errors import BadInput
from crl.lab.study.config import load_study
from crl.lab.study.plan import PlannedRun, chosen, plan_runs
from crl.lab.study.runs import prepare
from tests.study.recipe import KIND
from tests.study.studies import ARMS, write

ROOT = Path(__file__).parents[4]

SIZE: dict[str, Any] = {
    "title": "group size",
    "values": {2: {"method.rollout.group_size": 2}, 4: {}, 0.5: {"method.rollout.group_size": 5}},
    "arms": ["complementary", "baseline"],
}


def refused(tmp_path: Path, **changes: Any) -> str:
    with pytest.raises(BadInput) as raised:
        plan_runs(load_study(write(tmp_path, **changes)), tmp_path / "runs")
    assert raised.value.exit_code == 2
    return str(raised.value)


def planned(tmp_path: Path, **changes: Any) -> list[PlannedRun]:
    return plan_runs(load_study(write(tmp_path, **changes)), tmp_path / "runs")


@pytest.mark.parametrize("path", sorted((ROOT / "conf/study").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_study_that_ships_is_valid(path: Path, tmp_path: Path) -> None:
    runs = plan_runs(load_study(path), tmp_path)
    assert len({run.experiment.method.digest() for run in runs}) == len(runs)


def test_paths_are_relative_to_the_study_file(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, base="base.yaml", warm_starts=["../warm/realms.yaml"]))
    assert study.base == tmp_path / "base.yaml" and study.warm_starts == [tmp_path / "../warm/realms.yaml"]
    with pytest.raises(BadInput, match="there is no file"):
        plan_runs(study, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sedes": [1]}, "sedes: unknown key; did you mean 'seeds'?"),
        ({"arms": {**ARMS, "other": {"sett": {}}}}, "arms.other.sett: unknown key; did you mean 'set'?"),
        ({"arms": {**ARMS, "Other": {}}}, "should match pattern"),
        ({"arms": {**ARMS, "other": {"set": {"name": "x"}}}}, "set: 'name' is no key of an experiment"),
        ({"arms": {**ARMS, "other": {"set": {"method.sede": 1}}}}, "method.sede: unknown key; did you mean 'seed'?"),
        ({"arms": {**ARMS, "other": {"set": {"method.families.7.groups": 1}}}}, "arm other"),
        ({"set": {"rounds": 1}}, "set: 'rounds' is no key of an experiment"),
        ({"arms_from": "nowhere.yaml"}, "there is no file"),
        ({"arms_from": "study.yaml"}, "study.yaml: arms_from leads back to this file"),
        ({"seeds": []}, "seeds: List should have at least 1 item"),
        ({"seeds": [11, 11]}, "a seed appears twice"),
        ({"tuned_on": [3, 11]}, "settings were chosen on seeds [11]"),
        ({"arms": {**ARMS, "other": {"seeds": [2]}}}, "arm other: settings were chosen on seeds [2]"),
        ({"compare_with": "nobody"}, "compare_with 'nobody' is no arm; arms: complementary, baseline"),
        ({"arms": {**ARMS, "other": {"compare_with": ["nobody"]}}}, "compare_with 'nobody' is no arm"),
        ({"arms": {**ARMS, "other": {"prepared_by": "nobody"}}},
         "prepared_by 'nobody' is no arm that prepares for itself"),
        ({"arms": {**ARMS, "other": {"prepared_by": "more"}, "more": {"prepared_by": "baseline"}}},
         "prepared_by 'more' is no arm that prepares for itself: complementary, baseline"),
        ({"arms": {**ARMS, "other": {"seeds": [13], "prepared_by": "baseline"}}},
         "arm other: baseline, which prepares for it, has no seed 13"),
        ({"arms": {**ARMS, "other": {"prepared_by": "complementary", "set": {
            **ARMS["complementary"]["set"], "method.roles.actor.lora": {"r": 2}}}}},
         "method.roles.actor.lora is LoraConfig("),
        ({"arms": {**ARMS, "other": {"prepared_by": "complementary"}}},
         "arm complementary, which prepares for arm other, has no role extractor"),
        ({"compare_with": [], "arms": {"one": {}, "other": {"prepared_by": "one", "set": {
            "method.recipe.warm_start.actor_episodes": 8}}}},
         "arm other has a warm start of its own, and begins with round 0 of one"),
        ({"compare_with": [], "arms": {"one": {}, "more": {"prepared_by": "one", "set": {"method.threads": 3}}},
          "scales": {"start": {**SIZE, "arms": ["more"], "values": {
              64: {}, 8: {"method.recipe.warm_start.actor_episodes": 8}}}}},
         "arm more_start_8 has a warm start of its own"),
        ({"arms": {**ARMS, "other": {"prepared_by": "complementary", "compare_with": [], "set": {
            **ARMS["complementary"]["set"], "method.families.0.evaluation_seeds.count": 3}}}},
         "arm other has held-out tasks of its own, and begins with round 0 of complementary"),
        ({"rounds": 6, "last": 3, "set": {"method.evaluation.every": 3}},
         "`last` is 3, and arm complementary is evaluated 2 times from round 1 to 6"),
        ({"rounds": 6, "last": 2, "set": {"method.evaluation.every": 1, "method.families.0.changes": [
            {"round": 6, "environment": {"max_turns": 3}}]}},
         "`last` is 2, and arm complementary is evaluated 1 times from round 6 to 6"),
        ({"rounds": 6, "last": 2, "set": {"method.evaluation.every": 1}, "arms": {**ARMS, "other": {"set": {
            **ARMS["complementary"]["set"], "method.evaluation.every": 2}}}},
         "arm other is evaluated every 2 rounds, and baseline, which it is compared with, every 1"),
        ({"name": "x" * 41, "arms": {**ARMS, "y" * 31: {}}}, "characters, at most 63"),
        ({"seed_keys": ["method.sede"]}, "seed_keys: 'method.sede' leads nowhere"),
        ({"seed_keys": ["method.families.*.environment.world"]}, "leads nowhere in this arm"),
        ({"arms": {**ARMS, "twin": {**ARMS["complementary"], "title": "Twin"}}},
         "arms complementary and twin have the same method"),
        ({"rounds": 7, "arms": {"one": {"set": {"method.evaluation.every": 2}}}, "compare_with": []},
         "round 7, the last of arm one, is not evaluated"),
        ({"arms": {**ARMS, "other": {"set": {"method.families.0.evaluation_seeds.count": 3}}}},
         "arm other is evaluated on other tasks than baseline"),
        ({"arms": {**ARMS, "other": {"set": {"method.families.0.changes": [
            {"round": 2, "environment": {"max_turns": 3}}]}}}}, "arm other is evaluated on other tasks than baseline"),
        ({"scales": {"size": {**SIZE, "arms": ["nobody"]}}}, "scales.size: 'nobody' is no arm; arms: complementary"),
        ({"scales": {"size": {**SIZE, "values": {4: {}}}}}, "scales.size.values: Dictionary should have at least 2"),
        ({"scales": {"size": {**SIZE, "values": {4: {}, 5: {"name": 1}}}}}, "set: 'name' is no key of an experiment"),
        ({"base": "nowhere.yaml"}, "there is no file"),
    ],
)  # fmt: skip
def test_what_is_refused_names_the_place(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, **changes)


@pytest.mark.parametrize(
    ("file", "study", "arm", "seed"),
    [("self_distillation", "coevolution", "recommended", 221), ("recommended", "internalization", "beats", 16)],
)
def test_a_recipe_that_is_recommended_is_the_arm_that_was_measured(
    tmp_path: Path, file: str, study: str, arm: str, seed: int
) -> None:
    runs = plan_runs(load_study(ROOT / f"conf/study/{study}.yaml"), tmp_path)
    [measured] = [each for each in runs if (each.arm, each.seed) == (arm, seed)]
    changed = {"method.seed": seed, "method.families.0.environment.world": seed}
    ours, theirs = load_experiment(ROOT / f"conf/{file}.yaml", changed).method, measured.experiment.method
    left_out = {"roles"}  # the study's file has those of other recipes, too
    assert ours.model_dump(exclude=left_out) == theirs.model_dump(exclude=left_out)
    assert all(ours.role(name) == theirs.role(name) for name in ours.recipe.roles())


@pytest.mark.slow
def test_arms_of_another_study_are_run_with_what_every_arm_sets(tmp_path: Path) -> None:
    first = load_study(ROOT / "conf/study/recipes.yaml")
    lakes = load_study(ROOT / "conf/study/recipes_lakes.yaml")
    own = {"sim_to_real", "suppress", "trial"}
    shared = first.arms.keys() - own
    assert lakes.arms.keys() == first.arms.keys() | own and lakes.references_of("erl_no_gate") == ["erl"]
    assert all(lakes.arms[arm] == first.arms[arm] for arm in shared)
    assert lakes.arms["sim_to_real"] != first.arms["sim_to_real"]
    # Written again there, because an arm is replaced as a whole: nothing else may differ.
    again, before = (dict(study.arms["sim_to_real"].set["method.recipe"]) for study in (lakes, first))
    assert again.pop("synthetic_rounds") == 10 and before.pop("synthetic_rounds") == 20 and again == before
    for arm in ("suppress", "trial"):
        assert lakes.arms[arm].set.items() >= first.arms["recommended"].set.items()
    planned = [{(run.arm, run.seed): run for run in plan_runs(study, tmp_path)} for study in (first, lakes)]
    assert planned[0].keys() <= planned[1].keys()
    for place in [place for place in planned[0] if place[0] in shared]:
        one, other = (runs[place] for runs in planned)
        theirs, mine = one.experiment.method, other.experiment.method
        assert {family.environment.kind for family in mine.families} == {"masked_lake"}
        assert [family.environment.world for family in mine.families] == [other.seed] * 8
        # An arm changes what the study sets for its own runs alone: ERL's first family has half as many groups.
        assert [family.groups for family in mine.families] == [family.groups for family in theirs.families]
        assert mine.model_copy(update={"families": theirs.families}).digest() == theirs.digest()

    written = {"arms_from": str(ROOT / "conf/study/tiny.yaml"), "arms": {"baseline": {"title": "Mine"}, "more": {}}}
    study = load_study(write(tmp_path, **written, compare_with="baseline"))
    assert set(study.arms) == {*load_study(ROOT / "conf/study/tiny.yaml").arms, "more"}
    assert study.title_of("baseline") == "Mine"


def test_every_run_has_its_arms_settings_and_every_seed_key_the_seed(tmp_path: Path) -> None:
    base = yaml.safe_load((ROOT / "conf/tiny.yaml").read_text())
    realm = {"kind": "realms", "realm": "{index}"}
    base["method"]["families"] = [{"repeat": 3, "name": "r{index}", "environment": realm}]
    base["method"]["prompts"] = yaml.safe_load((ROOT / "conf/prompts/tiny.yaml").read_text())
    (tmp_path / "base.yaml").write_text(yaml.safe_dump(base))
    keys = ["method.seed", "method.families.*.environment.world"]
    static = {"method.recipe.kind": "static_online", "method.recipe.warm_start": None}
    own = {"set": static, "seeds": [12], "rounds": 1}
    arms = {**ARMS, "own": own}
    runs = planned(tmp_path, base="base.yaml", seed_keys=keys, arms=arms)
    assert [(run.arm, run.seed) for run in runs] == [
        ("complementary", 11), ("baseline", 11), ("complementary", 12), ("baseline", 12), ("own", 12),
    ]  # fmt: skip
    for run in runs:
        method = run.experiment.method
        assert method.seed == run.seed and [each.environment.world for each in method.families] == [run.seed] * 3
        assert method.recipe.kind == ("static_online" if run.arm == "own" else KIND)
        assert run.arm == "own" or method.recipe.arm == run.arm
        assert run.name == run.path.name == f"trial-{run.arm}-s{run.seed}" and run.path.parent.name == "trial"
    assert [run.rounds for run in runs] == [3, 3, 3, 3, 1]
    # But for the seeds it is the method of the file with the settings of the arm, to the digest.
    plain = load_experiment(tmp_path / "base.yaml", {"method.seed": 11, **ARMS["complementary"]["set"]})
    families = [
        family.model_copy(update={"environment": family.environment.model_copy(update={"world": 11})})
        for family in plain.method.families
    ]
    assert runs[0].experiment.method.digest() == plain.method.model_copy(update={"families": families}).digest()


def test_arms_with_other_tasks_may_be_compared_among_themselves(tmp_path: Path) -> None:
    few = {"method.families.0.evaluation_seeds.count": 3}
    arms = {
        **ARMS,
        "few": {"set": few, "compare_with": "few_baseline"},
        "few_baseline": {"set": {**few, "method.recipe.kind": "baseline"}, "compare_with": []},
    }
    study = load_study(write(tmp_path, arms=arms))
    assert len(plan_runs(study, tmp_path)) == 8
    assert [study.references_of(name) for name in arms] == [["baseline"], [], ["few_baseline"], []]


def test_what_is_varied_is_arms_at_each_value_compared_at_the_same_value(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, scales={"size": SIZE}))
    assert list(study.arms)[2:] == [
        "complementary_size_2", "complementary_size_0_5", "baseline_size_2", "baseline_size_0_5",
    ]  # fmt: skip
    point = study.arms["complementary_size_0_5"]
    assert (point.title, point.seeds) == ("Complementary <b>RL</b>, group size 0.5", None)
    assert point.set == {**ARMS["complementary"]["set"], "method.rollout.group_size": 5}
    assert study.references_of("complementary_size_2") == ["baseline_size_2", "complementary"]
    assert study.references_of("baseline_size_2") == ["baseline"], "what a value adds, with a pair per seed"
    assert study.point_of("size", "baseline", 4) == "baseline", "what has the value already is not run again"
    sizes = {run.arm: run.experiment.method.rollout.group_size for run in plan_runs(study, tmp_path) if run.seed == 12}
    assert (sizes["baseline_size_2"], sizes["baseline_size_0_5"], len(sizes)) == (2, 5, 6)


def test_a_value_as_small_as_a_learning_rate_has_a_name(tmp_path: Path) -> None:
    rates = {1e-3: {}, 1e-5: {"method.roles.actor.optimizer.learning_rate": 1e-5}}
    scale = {"title": "rate", "values": rates, "arms": ["complementary"]}
    assert "complementary_rate_1em05" in load_study(write(tmp_path, scales={"rate": scale})).arms


def test_a_value_is_compared_with_what_is_not_varied_unless_its_tasks_are_others(tmp_path: Path) -> None:
    alone = {**SIZE, "arms": ["complementary"]}
    study = load_study(write(tmp_path, scales={"size": alone}))
    assert study.references_of("complementary_size_2") == ["baseline", "complementary"]
    tasks = {"title": "games", "values": {3: {"method.families.0.evaluation_seeds.count": 3}, 9: {}}}
    study = load_study(write(tmp_path, scales={"games": {**tasks, "arms": ["complementary", "baseline"]}}))
    assert study.references_of("complementary_games_3") == ["baseline_games_3"]
    assert study.references_of("baseline_games_3") == []


def test_a_curve_has_the_same_seeds_at_every_value(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="its seeds are not those of arm complementary, which is its value 4"):
        load_study(write(tmp_path, scales={"size": {**SIZE, "seeds": [12]}}))


def test_only_warm_starts_that_the_runs_begin_with_are_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    monkeypatch.setattr("crl.lab.study.runs.make_warm_starts", lambda paths, say: made.extend(paths))
    monkeypatch.setattr("crl.preflight.check_ready", lambda *_: None)
    monkeypatch.setattr("crl.preflight.check_before_warm_starts", lambda *_: None)
    warm = [ROOT / "conf" / "warm" / f"{name}.yaml" for name in ("realms", "recipes")]
    runs = planned(tmp_path, set={"method.roles.actor.model": "warm:recipes/actor"})
    prepare(runs, warm, lambda _: None)
    assert made == warm[1:]


def test_those_that_another_prepares_for_come_last(tmp_path: Path) -> None:
    other = {"set": {**ARMS["baseline"]["set"], "method.threads": 2}, "prepared_by": "complementary"}
    runs = planned(tmp_path, arms={"other": other, **ARMS})
    assert [run.name.removeprefix("trial-") for run in runs] == [
        "complementary-s11", "baseline-s11", "complementary-s12", "baseline-s12", "other-s11", "other-s12",
    ]  # fmt: skip
    for run in runs[-2:]:
        assert run.parent is not None and run.parent.forks == [run]
        assert (run.parent.arm, run.parent.seed) == ("complementary", run.seed)
    # An arm that is added when all have ended begins with the same round 0: its weights stay.
    kept = {run.arm: run.experiment.runtime.keep_every for run in runs}
    assert kept["baseline"] == kept["other"] == 0 and kept["complementary"] > max(run.rounds for run in runs)
    asked = planned(tmp_path, arms={"other": other, **ARMS}, set={"runtime.keep_every": 2})
    assert {run.experiment.runtime.keep_every for run in asked} == {2}


def test_a_recipe_that_knows_no_warm_start_begins_with_that_of_another(tmp_path: Path) -> None:
    replay = {"kind": "importance_replay", "extractor": {"embedder": None}}
    arms = {"one": {"set": {"method.recipe.kind": "baseline"}},
            "replay": {"prepared_by": "one", "set": {"method.recipe": replay}}}  # fmt: skip
    assert [run.arm for run in planned(tmp_path, arms=arms, compare_with=[])] == ["one", "one", "replay", "replay"]


def test_at_each_value_of_a_scale_the_arm_of_that_value_prepares(tmp_path: Path) -> None:
    arms = {**ARMS, "baseline": {**ARMS["baseline"], "prepared_by": "complementary"}}
    parents = {run.arm: run.parent and run.parent.arm for run in planned(tmp_path, arms=arms, scales={"size": SIZE})}
    assert parents["baseline_size_2"] == "complementary_size_2" and parents["complementary_size_2"] is None
    assert parents["baseline"] == "complementary"
    alone = {**SIZE, "arms": ["baseline"]}
    parents = {run.arm: run.parent and run.parent.arm for run in planned(tmp_path, arms=arms, scales={"size": alone})}
    assert parents["baseline_size_2"] == "complementary"


def test_only_trackers_that_are_asked_for_are_written_to(tmp_path: Path) -> None:
    assert {run.experiment.runtime.trackers for run in planned(tmp_path)} == {()}
    asked = planned(tmp_path, set={"runtime.trackers": ["tensorboard"]})
    assert {run.experiment.runtime.trackers for run in asked} == {(TrackerChoice(kind="tensorboard"),)}


def test_another_precision_is_said_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crl.policies.machine.replaced", lambda method: "actor: computed in float32")
    said: list[str] = []
    prepare(planned(tmp_path), [], said.append)
    assert said == ["actor: computed in float32"]


def test_some_arms_and_seeds_only(tmp_path: Path) -> None:
    runs = planned(tmp_path)
    assert [run.name for run in chosen(runs, ["baseline"], [12])] == ["trial-baseline-s12"]
    with pytest.raises(BadInput, match="the study has no arm nobody"):
        chosen(runs, ["nobody"], None)
    with pytest.raises(BadInput, match="the study has no seed 99"):
        chosen(runs, None, [99])
