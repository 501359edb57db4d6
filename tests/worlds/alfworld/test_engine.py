"""The engine, on a made-up kitchen: what is said, what can be done, and when a task is done."""

from __future__ import annotations

import pytest

from crl.worlds.alfworld.files import load
from crl.worlds.alfworld.game import NOTHING
from crl.worlds.alfworld.grammar import symbols_of
from crl.worlds.alfworld.pddl import Unsupported, alternatives, parse, read_domain, read_problem
from crl.worlds.alfworld.speech import names_of
from tests.worlds.alfworld.world import game_texts, write_game

PICK = "pick_and_place_simple"


@pytest.fixture
def start(tmp_path):
    def make(family=PICK, seed=0, wording="file", **changes):
        return load(write_game(tmp_path, game_texts(family, seed) | changes, family, seed), wording).start()

    return make


def test_a_game_word_for_word(start):
    """Seed 0: both mugs and the plate are in the sink, the rest elsewhere."""
    state = start()
    assert state.text.split("\n\n") == [
        "A kitchen.",
        "You see a cabinet 2, a cabinet 1, a countertop 1, a fridge 1, a microwave 1, a shelf 2, a shelf 1, "
        "a sidetable 1, and a sinkbasin 1.",
        "Your task is to: put a mug in shelf.",
    ]
    assert state.commands == (
        "go to cabinet 1", "go to cabinet 2", "go to countertop 1", "go to fridge 1", "go to microwave 1",
        "go to shelf 1", "go to shelf 2", "go to sidetable 1", "go to sinkbasin 1", "help", "inventory", "look",
    )  # fmt: skip
    said = {
        "look": "You stand in the middle of the kitchen.",
        "inventory": "You hold nothing.",
        "go to sinkbasin 1": "You stand at loc 6. On the sinkbasin 1: a mug 2, a mug 1, and a plate 1.",
        "take mug 1 from sinkbasin 1": "You hold the mug 1, which was at the sinkbasin 1.",
        " inventory ": "You hold a mug 1.",
        "examine mug 1": "The mug 1 is a mug 1.",
        "clean mug 1 with sinkbasin 1": "The mug 1 gets clean in the sinkbasin 1.",
        "go to microwave 1": "You stand at loc 5. The microwave 1 is shut.",
        "heat mug 1 with microwave 1": "The mug 1 gets hot in the microwave 1.",
        "put mug 1 in/on microwave 1": NOTHING,
        "open microwave 1": "The microwave 1 opens. In the open microwave 1: nothing.",
        "close microwave 1": "The microwave 1 is shut.",
        "go to fridge 1": "You stand at loc 4. The fridge 1 is shut.",
        "go to shelf 1": "You stand at loc 2. On the shelf 1: nothing.",
    }
    for command, text in said.items():
        assert state.do(command) == text
    assert not state.won
    assert state.do("examine mug 1") == "The mug 1 is clean and hot."
    assert state.do("put mug 1 in/on shelf 1") == "The mug 1 is at the shelf 1 now."
    assert state.won
    assert state.do("look") == "Before you: shelf 2, and shelf 1. Nothing was moved."
    assert state.do("take mug 1 from shelf 1") and state.do("put mug 1 in/on shelf 2")
    assert state.do("look") == "Before you: shelf 2, and shelf 1. Moved: mug 1.", "it lay on the other shelf before"


def test_what_can_be_done_follows_the_state(start):
    state = start()
    assert state.do("fly to the moon") == NOTHING and state.do("") == NOTHING
    here = state.commands
    state.do("go to sinkbasin 1")
    assert "go to sinkbasin 1" not in state.commands, "one is there"
    assert "examine sinkbasin 1" in state.commands
    # The rule asks for an object of the type `location,`, with its comma: no such thing, so only what is held.
    assert not any(command.startswith("examine mug") for command in state.commands)
    assert {c for c in state.commands if c.startswith("take")} == {
        "take mug 1 from sinkbasin 1", "take mug 2 from sinkbasin 1", "take plate 1 from sinkbasin 1",
    }  # fmt: skip
    state.do("take plate 1 from sinkbasin 1")
    assert not any(command.startswith("take") for command in state.commands), "one hand"
    assert "clean plate 1 with sinkbasin 1" in state.commands
    state.do("go to shelf 2")
    assert not {"go to shelf 1", "go to shelf 2"} & set(state.commands), "both are in reach of one place"
    assert {"put plate 1 in/on shelf 1", "put plate 1 in/on shelf 2"} <= set(state.commands)
    assert "close cabinet 1" not in state.commands and len(state.commands) > 5
    assert tuple(sorted(state.commands)) == state.commands and len(here) == 12


def test_closed_things_hide_what_is_in_them(start):
    for seed in range(30):
        state = start(seed=seed)
        state.do("go to cabinet 1")
        shut = state.commands
        assert not any("from cabinet 1" in command for command in shut)
        text = state.do("open cabinet 1")
        taking = [command for command in state.commands if "from cabinet 1" in command]
        assert bool(taking) is not text.endswith("nothing.")
        state.do("close cabinet 1")
        assert state.commands == shut
        if taking:
            return
    pytest.fail("no seed has something in the cabinet")


def test_lamps_are_switched_and_apples_are_cut(start):
    state = start("look_at_obj_in_light", 1)
    state.do("go to sidetable 1")
    assert state.do("use desklamp 1") == "You switch the desklamp 1."
    assert ("ison", *lamp(state)) in state.facts
    state.do("use desklamp 1")
    assert ("ison", *lamp(state)) not in state.facts and ("istoggled", *lamp(state)) in state.facts
    for seed in range(60):
        state = start("pick_cool_then_place_in_recep", seed)
        knife = next(row[1] for row in state.facts.rows("inreceptacle") if row[0].startswith("knife"))
        state.do(f"go to {state.game.names[knife]}")
        state.do(f"open {state.game.names[knife]}")
        state.do(f"take knife 1 from {state.game.names[knife]}")
        cutting = [command for command in state.commands if command.startswith("slice")]
        if cutting:
            assert state.do(cutting[0]) == f"You cut the {cutting[0][6:13]} with the knife 1."
            return
    pytest.fail("no seed has an apple beside the knife")


def lamp(state):
    return next((row[0],) for row in state.facts.rows("toggleable"))


def test_two_plays_of_a_game_share_nothing_that_changes(start):
    first = start()
    second = first.game.start()
    first.do("go to sinkbasin 1")
    first.do("take mug 1 from sinkbasin 1")
    third = first.game.start()
    assert second.text == third.text and second.commands == third.commands != first.commands
    assert second.do("go to sinkbasin 1").endswith("a mug 2, a mug 1, and a plate 1.")


def test_things_of_a_class_are_numbered_from_the_last_id():
    ids = ["mug_bar__minus_1", "mug_bar__plus_1", "sink_bar_1_bar_sinkbasin", "sink_bar_1", "agent1"]
    assert names_of(ids) == {
        "agent1": "agent1 ", "mug_bar__minus_1": "mug 2", "mug_bar__plus_1": "mug 1", "sink_bar_1": "sink 1",
        "sink_bar_1_bar_sinkbasin": "sinkbasin 1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("wording", "command", "said"),
    [
        ("put", "put mug 1 in/on shelf 1", "You put the mug 1 in/on the shelf 1."),
        ("move", "move mug 1 to shelf 1", "You move the mug 1 to the shelf 1."),
        ("file", "put mug 1 in/on shelf 1", "The mug 1 is at the shelf 1 now."),
    ],
)
def test_the_wording_is_chosen(start, wording, command, said):
    state = start(wording=wording)
    for each in ("go to sinkbasin 1", "take mug 1 from sinkbasin 1", "go to shelf 1"):
        state.do(each)
    assert command in state.commands and state.do(command) == said and state.won
    word = "move (object) to (receptacle)" if wording == "move" else "put (object) in/on (receptacle)"
    assert state.do("help") == f"{word}: put it down\n"


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(define (a)", "inside a bracket"),
        ("(define))", "never opened"),
        ("define", "1 expressions"),
        ("(a) (b)", "2 expressions"),
    ],
)
def test_brackets_must_match(text, found):
    with pytest.raises(Unsupported, match=found):
        parse(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(forall (?o - object) (a ?o))", "does not read"),
        ("(not (exists (?o - object) (a ?o)))", "does not read"),
        ("(= a b)", "equation"),
        ("(and word)", "word"),
        ("(a (b))", "atom"),
    ],
)
def test_conditions_of_another_kind_are_refused(text, found):
    with pytest.raises(Unsupported, match=found):
        alternatives(parse(text))


def test_conditions_become_alternatives():
    both = alternatives(parse("(and (or (a) (b)) (not (or (c) (not (d)))))"))
    assert [(each.positive, each.negative) for each in both] == [
        ((("a",), ("d",)), (("c",),)),
        ((("b",), ("d",)), (("c",),)),
    ]
    two = alternatives(parse("(and (exists (?o - t) (a ?o)) (exists (?o - u) (b ?o)))"))[0]
    assert sorted(two.variables.values()) == ["t", "u"], "two variables of one name stay two"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(define (domain d))", "no action"),
        ("(define (:action a :effect (forall (?o) (b ?o))))", "effect"),
        ("(define (:derived (a) (b)))", "derived"),
    ],
)
def test_domains_of_another_kind_are_refused(text, found):
    with pytest.raises(Unsupported, match=found):
        read_domain(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("(define (:objects a - t) (:init (p a)))", "no :goal"),
        ("(define (:objects a - t) (:init (p b)) (:goal (p a)))", "names 'b'"),
        ("(define (:init) (:goal (p a)))", "no :objects"),
    ],
)
def test_problems_with_something_missing_are_refused(text, found):
    with pytest.raises(Unsupported, match=found):
        read_problem(text)


def test_only_names_and_texts_of_an_expression_are_computed():
    for text in ("{__import__('os').getcwd()}", "{o.__class__}", "{1 + 2}", "{o.name if o else o}", "{(o}"):
        with pytest.raises(Unsupported, match="expression"):
            symbols_of(text)
    assert symbols_of("said} and dropped") == ("said",), "as TextWorld's parser does"
