"""A made-up kitchen in the form of ALFWorld's game files: rules, words and rooms are this project's own.

`make_data` writes as many games of the six task families as are asked for. A game differs from the next in its task and
in where its things are.
"""

from __future__ import annotations

import json
import random
from pathlib import Path

from crl.worlds.alfworld.files import TASKS

DOMAIN = """
(define (domain kitchen) ; everything that can be done here
  (:requirements :adl :typing :action-costs)
  (:types agent location receptacle object rtype otype)
  (:predicates
    (atLocation ?a - agent ?l - location) (receptacleAtLocation ?r - receptacle ?l - location)
    (objectAtLocation ?o - object ?l - location) (inReceptacle ?o - object ?r - receptacle)
    (openable ?r - receptacle) (opened ?r - receptacle) (checked ?x - object)
    (receptacleType ?r - receptacle ?t - rtype)
    (objectType ?o - object ?t - otype) (canContain ?t - rtype ?o - otype) (holds ?a - agent ?o - object)
    (holdsAny ?a - agent) (pickupable ?o - object) (cleanable ?o - object) (heatable ?o - object)
    (coolable ?o - object) (toggleable ?o - object) (sliceable ?o - object) (isClean ?o - object) (isHot ?o - object)
    (isCool ?o - object) (isOn ?o - object) (isToggled ?o - object) (isSliced ?o - object))
  (:functions (total-cost) - number)
  (:action look :parameters (?a - agent ?l - location) :precondition (atLocation ?a ?l) :effect (checked ?l))
  (:action inventory :parameters (?a - agent) :precondition () :effect (and (checked ?a)))
  (:action help :parameters (?a - agent) :precondition () :effect (and (checked ?a)))
  (:action examineObject :parameters (?a - agent ?o - object)
    :precondition (or (exists (?l - location, ?r - receptacle)
                        (and (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (inReceptacle ?o ?r)))
                      (holds ?a ?o))
    :effect (checked ?o))
  (:action examineReceptacle :parameters (?a - agent ?r - receptacle)
    :precondition (exists (?l - location) (and (receptacleAtLocation ?r ?l) (atLocation ?a ?l)))
    :effect (checked ?r))
  (:action GotoLocation :parameters (?a - agent ?lStart - location ?lEnd - location ?r - receptacle)
    :precondition (and (receptacleAtLocation ?r ?lEnd) (atLocation ?a ?lStart))
    :effect (and (atLocation ?a ?lEnd) (not (atLocation ?a ?lStart)) (increase (total-cost) 1)))
  (:action OpenObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (openable ?r) (not (opened ?r)) (receptacleAtLocation ?r ?l) (atLocation ?a ?l))
    :effect (and (opened ?r) (checked ?r)))
  (:action CloseObject :parameters (?a - agent ?l - location ?r - receptacle)
    :precondition (and (openable ?r) (opened ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l))
    :effect (not (opened ?r)))
  (:action PickupObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (pickupable ?o) (not (holdsAny ?a)) (atLocation ?a ?l) (receptacleAtLocation ?r ?l)
                       (inReceptacle ?o ?r) (not (and (openable ?r) (not (opened ?r)))))
    :effect (and (holds ?a ?o) (holdsAny ?a) (not (inReceptacle ?o ?r)) (not (objectAtLocation ?o ?l))))
  (:action PutObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle ?ot - otype ?rt - rtype)
    :precondition (and (holds ?a ?o) (atLocation ?a ?l) (receptacleAtLocation ?r ?l) (objectType ?o ?ot)
                       (receptacleType ?r ?rt) (canContain ?rt ?ot) (or (not (openable ?r)) (opened ?r)))
    :effect (and (inReceptacle ?o ?r) (objectAtLocation ?o ?l) (not (holds ?a ?o)) (not (holdsAny ?a))))
  (:action CleanObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (receptacleType ?r SinkBasinType) (cleanable ?o) (holds ?a ?o) (atLocation ?a ?l)
                       (receptacleAtLocation ?r ?l))
    :effect (isClean ?o))
  (:action HeatObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (receptacleType ?r MicrowaveType) (heatable ?o) (holds ?a ?o) (atLocation ?a ?l)
                       (receptacleAtLocation ?r ?l))
    :effect (and (isHot ?o) (not (isCool ?o))))
  (:action CoolObject :parameters (?a - agent ?l - location ?r - receptacle ?o - object)
    :precondition (and (receptacleType ?r FridgeType) (coolable ?o) (holds ?a ?o) (atLocation ?a ?l)
                       (receptacleAtLocation ?r ?l))
    :effect (and (isCool ?o) (not (isHot ?o))))
  (:action ToggleObject :parameters (?a - agent ?l - location ?o - object ?r - receptacle)
    :precondition (and (toggleable ?o) (inReceptacle ?o ?r) (atLocation ?a ?l) (receptacleAtLocation ?r ?l))
    :effect (and (when (isOn ?o) (not (isOn ?o))) (when (not (isOn ?o)) (isOn ?o)) (isToggled ?o)))
  (:action SliceObject :parameters (?a - agent ?l - location ?co - object ?ko - object)
    :precondition (and (sliceable ?co) (objectType ?ko KnifeType) (holds ?a ?ko) (atLocation ?a ?l)
                       (objectAtLocation ?co ?l))
    :effect (isSliced ?co)))
"""

_SAID = {
    "GotoLocation": (
        "go to [{r.name | receptacleatlocation(r:receptacle, lend:location)}]",
        "You stand at {lend.name}. #see#",
    ),
    "OpenObject": ("open {r}", "The {r.name} opens. #see#"),
    "CloseObject": ("close {r}", "The {r.name} is shut."),
    "PickupObject": ("take {o} from {r}", "You hold the {o.name}, which was at the {r.name}."),
    "PutObject": ("put {o} in/on {r}", "#PutObject.feedback#"),
    "inventory": ("inventory", "#held#"),
    "examineReceptacle": ("examine {r}", "#see#"),
    "examineObject": ("examine {o}", "#state#"),
    "ToggleObject": ("use {o}", "You switch the {o.name}."),
    "HeatObject": ("heat {o} with {r}", "The {o.name} gets hot in the {r.name}."),
    "CleanObject": ("clean {o} with {r}", "The {o.name} gets clean in the {r.name}."),
    "CoolObject": ("cool {o} with {r}", "The {o.name} gets cold in the {r.name}."),
    "SliceObject": ("slice {co} with {ko}", "You cut the {co.name} with the {ko.name}."),
    "look": ("look", "#around#"),
    "help": ("help", "#help.feedback#"),
}  # fmt: skip
_THINGS = "[{o.indefinite + ' ' + o.name | inreceptacle(o:object, r:receptacle)}]"
_RULES = {
    "intro": [{"rhs": "A kitchen.\n\nYou see #furniture#.\n\n#task#"}],
    "furniture": [{"rhs": "[{#one(r)# | receptacleatlocation(r:receptacle, l:location)}]"}],
    "one(r)": [{"rhs": "{r.indefinite} {r.name or r.id}"}],
    "see": [
        {"condition": "openable(r:receptacle) & opened(r:receptacle)", "rhs": f"In the open {{r.name}}: {_THINGS}."},
        {"condition": "openable(r:receptacle)", "rhs": "The {r.name} is shut."},
        {"rhs": f"On the {{r.name}}: {_THINGS}."},
    ],
    "held": [
        {
            "condition": "holdsany(a:agent)",
            "rhs": "You hold [{o.indefinite + ' ' + o.name | holds(a:agent, o:object)}].",
        },
        {"rhs": "You hold nothing."},
    ],
    "state": [
        {"condition": "isclean(o:object) & ishot(o:object)", "rhs": "The {o.name} is clean and hot."},
        {"condition": "isclean(o:object)", "rhs": "The {o.name} is clean."},
        {"condition": "ishot(o:object)", "rhs": "The {o.name} is hot."},
        {"condition": "iscool(o:object)", "rhs": "The {o.name} is cold."},
        {"rhs": "The {o.name} is a {o.name}."},
    ],
    "around": [
        {
            "condition": "atlocation(a:agent, l:location) & receptacleatlocation(r:receptacle, l:location)",
            "rhs": "Before you: [{r.name | receptacleatlocation(r:receptacle, l:location)}]. #loose#",
        },
        {"rhs": "You stand in the middle of the kitchen."},
    ],
    "loose": [
        {
            "condition": "objectatlocation(o:object, l:location) & receptacleatlocation(r:receptacle, l:location) & "
            "not_inreceptacle(o:object, r:receptacle)",
            "rhs": "Moved: [{o.name | objectatlocation(o:object, l:location) & receptacleatlocation(r:receptacle, "
            "l:location) & not_inreceptacle(o:object, r:receptacle)}].",
        },
        {"rhs": "Nothing was moved."},
    ],
    "PutObject.feedback": [{"rhs": "The {o.name} is at the {r.name} now."}],
    "GotoLocation.feedback": [{"rhs": "unused"}],
    "help.feedback": [{"rhs": "\nput (object) in/on (receptacle): put it down\n"}],
    "list_empty": [{"rhs": "nothing"}],
    "list_separator": [{"rhs": ", "}],
    "list_last_separator": [{"rhs": ", and "}],
}  # fmt: skip
FURNITURE = {
    "Cabinet": 2, "CounterTop": 1, "SinkBasin": 1, "Microwave": 1, "Fridge": 1, "SideTable": 1, "Shelf": 2,
}  # fmt: skip
_OPENS = {"Cabinet", "Microwave", "Fridge"}
THINGS = {"Mug": 2, "Apple": 2, "Knife": 1, "Plate": 1, "DeskLamp": 1}
_NEVER_MOVED = {"DeskLamp"}
_GOALS = {
    "pick_and_place_simple": "put a mug in shelf",
    "look_at_obj_in_light": "look at plate under the desklamp",
    "pick_clean_then_place_in_recep": "put a clean plate in cabinet",
    "pick_heat_then_place_in_recep": "put a hot mug in countertop",
    "pick_cool_then_place_in_recep": "put a cool apple in sidetable",
    "pick_two_obj_and_place": "put two apple in fridge",
}


def grammar(task: str) -> str:
    """The grammar of a task, with an action whose rules are its own."""
    rules = {**_RULES, "task": [{"rhs": f"Your task is to: {task}."}]}
    actions = "\n".join(
        f'action {name} {{\n  template :: "{template}";\n  feedback :: "{feedback}";\n}}'
        for name, (template, feedback) in _SAID.items()
    )
    wave = 'template :: "wave";\n  feedback :: "#w#";\n  grammar :: """\n# a remark\n{"w": [{"rhs": "Hi"}]}\n""";'
    return f'grammar :: """\n{json.dumps(rules, indent=1)}\n""";\n{actions}\naction Wave {{\n  {wave}\n}}\n'


def _goal(family: str) -> str:
    def placed(thing: str, place: str, state: str = "") -> str:
        return (
            f"(exists (?r - receptacle) (exists (?o - object) (and {state} (objectType ?o {thing}Type) "
            f"(receptacleType ?r {place}Type) (inReceptacle ?o ?r))))"
        )

    return {
        "pick_and_place_simple": f"(and {placed('Mug', 'Shelf')})",
        "pick_clean_then_place_in_recep": placed("Plate", "Cabinet", "(isClean ?o)"),
        "pick_heat_then_place_in_recep": placed("Mug", "CounterTop", "(isHot ?o)"),
        "pick_cool_then_place_in_recep": placed("Apple", "SideTable", "(isCool ?o)"),
        "look_at_obj_in_light": "(and (exists (?t - object ?r - receptacle ?a - agent ?l - location) (and (objectType "
        "?t DeskLampType) (isToggled ?t) (inReceptacle ?t ?r) (receptacleAtLocation ?r ?l) (atLocation ?a ?l))) "
        "(exists (?o - object ?a - agent) (and (objectType ?o PlateType) (holds ?a ?o))))",
        "pick_two_obj_and_place": "(exists (?r - receptacle ?o - object) (and (objectType ?o AppleType) (inReceptacle "
        "?o ?r) (receptacleType ?r FridgeType) (exists (?p - object) (and (not (= ?o ?p)) (objectType ?p AppleType) "
        "(inReceptacle ?p ?r)))))",
    }[family]


def _id(name: str, number: int, sign: str) -> str:
    """An id as ALFRED writes it: a class and a position. A basin is a part of its sink."""
    part = f"_bar_{name}" if name.endswith("Basin") else ""
    return f"{name.removesuffix('Basin')}_bar__{sign}_0{number}_dot_50{part}"


def problem(family: str, seed: int) -> str:
    """A kitchen with its things at places that the seed draws; never so that the task is done at once."""
    draw = random.Random(seed)
    kind = {_id(name, i, "plus"): name for name, count in FURNITURE.items() for i in range(count)}
    receptacles = list(kind)
    things = [_id(name, i, "minus") for name, count in THINGS.items() for i in range(count)]
    kind |= {each: each.partition("_bar_")[0] for each in things}
    places = {each: f"loc_bar_{i}_bar_2" for i, each in enumerate(receptacles)}
    places[receptacles[-1]] = places[receptacles[-2]]  # two shelves are in reach of one place
    facts = ["(atLocation agent1 loc_bar_90_bar_2)"]
    for each in receptacles:
        facts += [f"(receptacleType {each} {kind[each]}Type)", f"(receptacleAtLocation {each} {places[each]})"]
        facts += [f"(openable {each})"] if kind[each] in _OPENS else []
        facts += [f"(canContain {kind[each]}Type {name}Type)" for name in THINGS]
    free = [each for each in receptacles if kind[each] in ("CounterTop", "Cabinet", "SideTable", "SinkBasin")]
    for each in things:
        place = draw.choice(free) if kind[each] not in _NEVER_MOVED else receptacles[6]
        facts += [f"(objectType {each} {kind[each]}Type)", f"(inReceptacle {each} {place})"]
        facts += [f"(objectAtLocation {each} {places[place]})"]
        if kind[each] in _NEVER_MOVED:
            facts.append(f"(toggleable {each})")
            continue
        facts += [f"({word} {each})" for word in ("pickupable", "cleanable", "heatable", "coolable")]
        facts += [f"(sliceable {each})"] if kind[each] == "Apple" else []
    objects = (
        ["agent1 - agent", "Spoon - object"]
        + [f"{each} - object" for each in things]
        + [f"{each} - receptacle" for each in receptacles]
        + [f"{each} - location" for each in dict.fromkeys([*places.values(), "loc_bar_90_bar_2"])]
        + [f"{name}Type - otype" for name in THINGS]
        + [f"{name}Type - rtype" for name in FURNITURE]
    )
    return (
        f"(define (problem kitchen_{family}_{seed})\n(:domain kitchen)\n(:objects\n"
        + "\n".join(objects)
        + ")\n(:init (= (total-cost) 0)\n"
        + "\n".join(dict.fromkeys(facts))
        + f"\n)\n(:goal {_goal(family)})\n(:metric minimize (total-cost)))\n"
    )


def game_texts(family: str, seed: int) -> dict[str, object]:
    """What a game file holds."""
    return {
        "pddl_domain": DOMAIN,
        "grammar": grammar(_GOALS[family]),
        "pddl_problem": problem(family, seed),
        "solvable": True,
    }


def write_game(folder: Path, texts: dict[str, object], family: str, seed: int) -> Path:
    """Write a game as the official data has it, below the folder of a split."""
    path = folder / f"{family}-Thing-None-Place-{seed}" / f"trial_T{seed:06d}" / "game.tw-pddl"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(texts))
    (path.parent / "traj_data.json").write_text(json.dumps({"task_type": family}))
    return path


def make_data(root: Path, *, train: int = 12, evaluation: int = 6) -> Path:
    """Write a data folder with so many games of training and of evaluation (`valid_unseen`), the families in turn."""
    for split, count, first in (("train", train, 0), ("valid_unseen", evaluation, 1000)):
        for index in range(count):
            family = TASKS[index % len(TASKS)]
            write_game(root / "json_2.1.1" / split, game_texts(family, first + index), family, first + index)
    return root
