"""The table of placeholders in docs/mixtures.md is what the code fills in, and what it asks for."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection

import pytest

from crl.config import PromptConfig
from crl.errors import BadInput
from crl.extractor import prompts as extractor
from crl.recipes.dreamgym import prompts as dreamgym
from crl.recipes.erl import prompts as erl
from crl.rollout import critic
from crl.rollout import prompts as actor
from tests.docs.test_commands import ROOT

PAGE = (ROOT / "docs/mixtures.md").read_text(encoding="utf-8")
ROWS = {
    name: (re.findall(r"\{(\w+)\}", filled), re.findall(r"\{(\w+)\}", needed))
    for name, filled, needed in re.findall(r"^\| `([\w.]+)`[^|]* \| ([^|]*\{[^|]*) \| ([^|]*) ?\|$", PAGE, re.MULTILINE)
}
FILLED: dict[str, Collection[str]] = {
    "actor.system": actor.SYSTEM_NAMES,
    "actor.first": actor.FIRST_NAMES,
    "actor.following": actor.FOLLOWING_NAMES,
    "actor.experience": ["experience"],
    "distill": extractor.DISTILL_NAMES,
    "merge": extractor.MERGE_NAMES,
    "ask": extractor.ASK_NAMES,
    "critic": critic.NAMES,
    "reflect": erl.NAMES,
    **dreamgym.NAMES,
}
ACTOR = {
    "system": "Play.",
    "first": "{experience}{observation}",
    "following": "{feedback}{observation}",
    "experience": "{experience}",
}


def test_the_placeholders_are_those_that_are_filled() -> None:
    assert {name: sorted(filled) for name, (filled, _) in ROWS.items()} == {
        name: sorted(filled) for name, filled in FILLED.items()
    }


def checks() -> dict[str, Callable[[str], None]]:
    """By row of the table, what is said of a prompt with this text in that place."""

    def first(text: str) -> PromptConfig:
        return PromptConfig(system="Do it.", first=text or "Now.")

    def of_the_actor(part: str) -> Callable[[str], None]:
        return lambda text: actor.check_prompts({"actor": PromptConfig(**{**ACTOR, part: text or "Now."})})

    found = {f"actor.{part}": of_the_actor(part) for part in ACTOR}
    found |= {
        name: lambda text, name=name: extractor.check_prompts({name: first(text)})
        for name in ("distill", "merge", "ask")
    }
    found |= {
        name: lambda text, name=name: dreamgym.check_prompt(name, first(text))
        for name in ("predict", "vary", "annotate")
    }
    found["critic"] = lambda text: critic.check_critic_prompt(first(text))
    found["reflect"] = lambda text: erl.check_reflect_prompt(first(text), memory=True)
    return found


@pytest.mark.parametrize("name", FILLED)
def test_what_is_needed_is_enough_and_nothing_of_it_can_be_left_out(name: str) -> None:
    check, needed = checks()[name], ROWS[name][1]
    if name == "actor.first":  # the experience comes directly before the observation
        needed = needed[::-1]
    check("".join(f"{{{each}}}" for each in needed))
    for left_out in needed:
        with pytest.raises(BadInput, match=left_out):
            check("".join(f"{{{each}}}" for each in needed if each != left_out))
    with pytest.raises(BadInput, match="unknown placeholder"):
        check("".join(f"{{{each}}}" for each in [*needed, "unheard_of"]))
