"""A user's own suites: found beside the experiment, refused before work where they cannot hold, held against rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated, Any, ClassVar

import pytest
import yaml

import crl.records as r
from crl.checks import check_tables, suites
from crl.checks.own import check_own_suites
from crl.config.load import load_experiment
from crl.errors import BadInput, DataCheckFailed
from crl.preflight import checks
from crl.records import Row, Rules, table_of
from tests.unit.checks import example_rows as examples

ROOT = Path(__file__).parents[3]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Dance(Row):
    """A row that a recipe brings."""

    table: ClassVar[str] = "dances"
    turns: Annotated[int, "how often"]

    rules: ClassVar[Rules] = Rules(key=("turns",))


FEW_TURNS = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "turns", "max_value": 1}}


def suite(*expectations: dict[str, Any]) -> dict[str, Any]:
    return {"name": "mine", "expectations": list(expectations)}


def query(sql: str, **more: Any) -> dict[str, Any]:
    return {"type": "unexpected_rows_expectation", "kwargs": {"unexpected_rows_query": sql}, **more}


def episodes() -> dict[Any, Any]:
    return {row_type: table_of(row_type, rows) for row_type, rows in examples.collect().items()}


def experiment(folder: Path, content: str | None, name: str = "episodes.json") -> Path:
    """The tiny experiment in a folder, with a file in `expectations/` beside it."""
    path = folder / "tiny.yaml"
    data = yaml.safe_load((ROOT / "conf" / "tiny.yaml").read_text(encoding="utf-8"))
    (folder / "prompts").symlink_to(ROOT / "conf" / "prompts")
    path.write_text(yaml.safe_dump(data), encoding="utf-8")
    if content is not None:
        (folder / "expectations").mkdir()
        (folder / "expectations" / name).write_text(content, encoding="utf-8")
    return path


def test_suites_beside_the_experiment_are_part_of_its_runtime_and_not_of_its_method(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    plain = load_experiment(experiment(tmp_path / "a", None))
    own = load_experiment(experiment(tmp_path / "b", json.dumps(suite(FEW_TURNS))))
    assert plain.runtime.expectations == {} and own.runtime.expectations == {"episodes": suite(FEW_TURNS)}
    assert plain.method.digest() == own.method.digest()
    dict(checks(own))["runtime.expectations"]()
    without = load_experiment(tmp_path / "b" / "tiny.yaml", {"runtime.expectations": "{}"})
    assert without.runtime.expectations == {}


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("episode.json", json.dumps(suite()), "did you mean episodes.json"),
        ("episodes.json", "{", "not readable JSON"),
        ("episodes.json", "[]", "not a suite of expectations"),
        ("episodes.json", json.dumps({"expectations": [{"kwargs": {}}]}), "not a suite of expectations"),
    ],
)
def test_a_file_that_is_no_suite_is_refused_when_it_is_read(tmp_path: Path, name: str, content: str, told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        load_experiment(experiment(tmp_path, content, name))
    assert name in str(raised.value.where)


@pytest.mark.parametrize(
    ("table", "config", "told"),
    [
        ("episode", FEW_TURNS, "'episode' takes no suite of your own; did you mean 'episodes'"),
        ("episodes", {"type": "expect_column_values_to_be_betwen", "kwargs": {"column": "turns"}}, "did you mean"),
        (
            "episodes",
            {**FEW_TURNS, "kwargs": {"column": "turn", "max_value": 1}},
            "no column 'turn'; did you mean 'turns",
        ),
        ("episodes", {**FEW_TURNS, "kwargs": {"column": "turns", "maximum": 1}}, "maximum"),
        ("episodes", query("SELECT * FROM {batch} WHERE prize > 1"), "prize"),
        ("episodes", query("SELECT * FROM {batch} JOIN prizes USING (episode_id)"), "prizes"),
    ],
)
def test_what_no_stage_could_be_held_against_is_refused(table: str, config: dict[str, Any], told: str) -> None:
    with pytest.raises(BadInput, match=told) as raised:
        check_own_suites({table: suite(config)})
    assert "runtime.expectations" in str(raised.value.where)


def test_a_table_that_a_recipe_brings_takes_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(suites.brought, "dances", Dance)
    with pytest.raises(BadInput, match="'dances' takes no suite of your own"):
        check_own_suites({"dances": suite(FEW_TURNS)})


def test_a_broken_rule_of_a_user_names_rule_column_and_rows() -> None:
    rule = query("SELECT * FROM {batch} WHERE reward > 0", description="nobody wins")
    own = {"episodes": suite(FEW_TURNS, rule)}
    check_own_suites(own)
    with pytest.raises(DataCheckFailed) as raised:
        check_tables(episodes(), where="round 1, stage collect", own=own)
    first, second = raised.value.found.splitlines()
    assert (
        "expect_column_values_to_be_between(column='turns', max_value=1.0)' is broken in 4 rows: row 0 (r0001-" in first
    )
    assert second.startswith(
        "table episodes: 'nobody wins' (column reward) is broken in 2 rows: row 0 (r0001-room-g0000-m0000); row 2"
    )
    assert raised.value.exit_code == 5


def test_a_query_sees_the_other_tables_of_the_stage() -> None:
    rule = query("SELECT e.row FROM {batch} e JOIN turns t USING (episode_id) WHERE t.turn = 1", description="one turn")
    with pytest.raises(DataCheckFailed, match=r"'one turn'.* is broken in 4 rows: row 0"):
        check_tables(episodes(), where="here", own={"episodes": suite(rule)})


def test_tolerance_and_aggregates_are_those_of_great_expectations() -> None:
    half = {
        "type": "expect_column_values_to_be_in_set",
        "kwargs": {"column": "success", "value_set": [True], "mostly": 0.5},
    }
    mean = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "turns", "min_value": 3}}
    results = check_tables(episodes(), where="here", own={"episodes": suite(half)})
    assert results[0].expectations == check_tables(episodes(), where="here")[0].expectations + 1
    with pytest.raises(DataCheckFailed, match=r"expect_column_mean_to_be_between\(.*does not hold: found 2"):
        check_tables(episodes(), where="here", own={"episodes": suite(half, mean)})


def test_a_table_without_rows_is_held_against_rules_about_the_table_only() -> None:
    empty = {r.Episode: table_of(r.Episode, [])}
    mean = {"type": "expect_column_mean_to_be_between", "kwargs": {"column": "turns", "min_value": 3}}
    some = {"type": "expect_table_row_count_to_be_between", "kwargs": {"min_value": 1}}
    assert check_tables(empty, where="here", own={"episodes": suite(mean)})[0].success
    with pytest.raises(DataCheckFailed, match=r"expect_table_row_count_to_be_between.*found 0"):
        check_tables(empty, where="here", own={"episodes": suite(some)})
