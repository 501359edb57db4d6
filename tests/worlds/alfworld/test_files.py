"""Game files that are missing, damaged or not to be played: what is said of them."""

from __future__ import annotations

import json

import pytest

from crl.envs import check_environment
from crl.errors import BadInput
from crl.worlds.alfworld import AlfworldConfig
from crl.worlds.alfworld.files import DOWNLOAD, TASKS, data_folders, games_of, load
from tests.worlds.alfworld.world import DOMAIN, game_texts, grammar, write_game

PICK = TASKS[0]


def test_missing_data_is_refused_with_all_that_helps(tmp_path, monkeypatch):
    monkeypatch.setenv("ALFWORLD_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(BadInput, match="split 'train' are missing") as caught:
        check_environment(AlfworldConfig())
    text = str(caught.value)
    for told in (
        "github.com/alfworld/alfworld", "MIT", DOWNLOAD, "$ALFWORLD_DATA",
        str(tmp_path / "nowhere" / "json_2.1.1" / "train"),
    ):  # fmt: skip
        assert told in text
    write_game(tmp_path / "nowhere" / "train", game_texts(PICK, 0), PICK, 0)
    with pytest.raises(BadInput, match=r"split 'valid_unseen' are missing; found the folders train"):
        AlfworldConfig().make()
    AlfworldConfig(held_out_from=None).make()


def test_where_the_data_is_looked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    assert data_folders(None)[0] == tmp_path / ".cache/alfworld/json_2.1.1"
    monkeypatch.setenv("ALFWORLD_DATA", "~/elsewhere")
    assert data_folders(None) == [tmp_path / "elsewhere/json_2.1.1", tmp_path / "elsewhere"]
    assert data_folders(tmp_path / "here")[0] == tmp_path / "here/json_2.1.1"


def test_only_games_that_are_known_to_be_solvable_are_played(tmp_path):
    texts = game_texts(PICK, 0)
    write_game(tmp_path / "train", texts, PICK, 0)
    write_game(tmp_path / "train", {**texts, "solvable": False}, PICK, 1)
    write_game(tmp_path / "train", {key: texts[key] for key in texts if key != "solvable"}, PICK, 2)
    write_game(tmp_path / "train", texts, "pick_and_place_with_movable_recep", 3)
    write_game(tmp_path / "train", texts, "pick_and_place_simple-AppleSliced", 4)
    assert [game.path.parent.name for game in games_of(tmp_path, "train", TASKS)] == ["trial_T000000"]
    with pytest.raises(BadInput, match="no solvable game of the tasks look_at_obj_in_light"):
        games_of(tmp_path, "train", ["look_at_obj_in_light"])


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (lambda whole: whole[: len(whole) // 2], "cannot be read as JSON"),
        (lambda whole: "", "cannot be read as JSON"),
        (lambda whole: "[1]", "holds list"),
        (lambda whole: json.dumps({**json.loads(whole), "grammar": None}), "lacks the text of grammar"),
    ],
)
def test_a_file_that_is_no_game_is_refused_before_anything_is_played(tmp_path, content, found):
    write_game(tmp_path / "train", game_texts(PICK, 0), PICK, 0)
    broken = write_game(tmp_path / "train", game_texts(PICK, 1), PICK, 1)
    broken.write_text(content(broken.read_text()))
    with pytest.raises(BadInput, match=found) as caught:
        AlfworldConfig(data=tmp_path, held_out_from=None).make()
    assert str(broken) in str(caught.value) and "alfworld-download" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"pddl_problem": "(define (problem p)"}, "ends inside a bracket"),
        ({"pddl_problem": ""}, "0 expressions"),
        ({"pddl_problem": "(define (problem p) (:objects) (:init))"}, "no :goal"),
        ({"pddl_domain": DOMAIN.replace("(and (opened ?r) (checked ?r))", "(forall (?x) (opened ?x))")}, "openobject"),
        ({"pddl_domain": DOMAIN[:-200]}, "ends inside a bracket"),
        ({"grammar": ""}, "no rules or no actions"),
        ({"grammar": grammar("x").replace('"see"', '"saw"')}, "no rule 'see'"),
        ({"grammar": grammar("x").replace("action help", "action hello")}, "no words for the actions help"),
        ({"grammar": grammar("x").replace("{lend.name}", "{lend.size}")}, "expression"),
        ({"grammar": grammar("x").replace('"rhs": "unused"', '"rhs": 3')}, "no mapping of rules"),
        ({"grammar": grammar("x").replace('"unused"', "unused")}, "is no JSON"),
        ({"grammar": grammar("x").replace("iscool(o:object)", "iscool(o:object")}, "does not read"),
    ],
)
def test_a_game_that_cannot_be_played_is_named(tmp_path, changes, found):
    path = write_game(tmp_path, game_texts(PICK, 0) | changes, PICK, 0)
    with pytest.raises(BadInput, match=found) as caught:
        load(path, "file")
    assert str(path) in str(caught.value) and "game file of ALFWorld is damaged" in str(caught.value)
