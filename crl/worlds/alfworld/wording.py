"""The wording of a game: how putting something down is called, and what is said on arrival.

Data of release 2.1.1 says `put apple 1 in/on fridge 1` and `You arrive at loc 3.`; since `alfworld` 0.4 the grammar
says `move apple 1 to fridge 1` and `You arrive at fridge 1.` Which one a file has, depends on the release that wrote
it. The paper's evaluation, like most others, has the older one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

Wording = Literal["put", "move", "file"]

_ARRIVE = "You arrive at {%s.name}. #examineReceptacle.feedback#"
_TEMPLATES: Mapping[str, str] = {"put": "put {o} in/on {r}", "move": "move {o} to {r}"}
_RULES: Mapping[str, Mapping[str, str]] = {
    "put": {
        "PutObject.feedback": "You put the {o.name} in/on the {r.name}.",
        "GotoLocation.feedback": _ARRIVE % "lend",
    },
    "move": {"PutObject.feedback": "You move the {o.name} to the {r.name}.", "GotoLocation.feedback": _ARRIVE % "r"},
}
_HELP: Mapping[str, str] = {"put": "put (object) in/on (receptacle):", "move": "move (object) to (receptacle):"}


def worded(
    rules: Mapping[str, Any], actions: Mapping[str, tuple[str, str]], wording: Wording
) -> tuple[dict[str, Any], dict[str, tuple[str, str]]]:
    """Rules and actions of a grammar (:func:`crl.worlds.alfworld.grammar.read_rules`) in a wording."""
    rules, actions = dict(rules), dict(actions)
    if wording == "file":
        return rules, actions
    if "putobject" in actions:
        actions["putobject"] = (_TEMPLATES[wording], actions["putobject"][1])
    for name, text in _RULES[wording].items():
        if name in rules:
            rules[name] = [{"rhs": text}]
    other = _HELP["move" if wording == "put" else "put"]
    if "help.feedback" in rules:
        rules["help.feedback"] = [
            {**each, "rhs": each["rhs"].replace(other, _HELP[wording])} for each in rules["help.feedback"]
        ]
    return rules, actions
