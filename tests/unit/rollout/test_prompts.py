"""Prompt templates: what is refused, where the experience stands, and that texts are never expanded."""

from __future__ import annotations

import pytest

from crl.config import Exchange, PromptConfig
from crl.errors import BadInput
from crl.rollout.prompts import actor_messages, check_prompts, following_text

EXTRACTOR = PromptConfig(system="s", first="{trajectory}")


def prompts(**changes) -> dict[str, PromptConfig]:
    fields = {
        "system": "S {goal} {actions}", "first": "{goal}\n{experience}{observation}!",
        "following": "{feedback}{observation}", "examples": [Exchange(user="u {x}", assistant="a")],
    } | changes  # fmt: skip
    return {"actor": PromptConfig(**fields), "distill": EXTRACTOR, "merge": EXTRACTOR}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"system": "{observation}"}, "prompts.actor.system"),
        ({"first": "{experience}{observation}{feedback}"}, "unknown placeholder {feedback}"),
        ({"first": "{experience}"}, "lacks {observation}"),
        ({"first": "{observation}"}, "lacks {experience}"),
        ({"first": "{observation}{experience}"}, "does not come last"),
        ({"first": "{experience}{goal}{observation}"}, "does not come last"),
        ({"first": "{experience}{observation}{observation}"}, "does not come last"),
        ({"following": "{observation}"}, "lacks {feedback}"),
        ({"experience": "advice"}, "lacks {experience}"),
        ({"experience": "{experience}{goal}"}, "unknown placeholder {goal}"),
    ],
)
def test_bad_templates_are_refused(changes, message):
    with pytest.raises(BadInput) as caught:
        check_prompts(prompts(**changes), "user")
    assert message in str(caught.value)


def test_good_templates_pass():
    check_prompts(prompts(), "user")
    check_prompts(prompts(first="{experience}\nMap:\n{observation}"), "user")
    check_prompts(prompts(first="{observation}"), "system")


def messages(experience, placement="user"):
    return actor_messages(
        prompts()["actor"], goal="G {experience}", observation="O {goal}", actions=("a", "b"),
        experience=experience, placement=placement,
    )  # fmt: skip


def test_messages_in_order_and_texts_not_expanded():
    assert messages("tip {observation}") == [
        {"role": "system", "content": "S G {experience} a, b"},
        {"role": "user", "content": "u {x}"},
        {"role": "assistant", "content": "a"},
        {"role": "user", "content": "G {experience}\nAdvice: tip {observation}\nO {goal}!"},
    ]


def test_guided_and_free_share_everything_before_the_experience():
    guided, free = messages("tip"), messages(None)
    assert guided[:-1] == free[:-1]
    assert guided[-1]["content"] == free[-1]["content"].replace("O {goal}", "Advice: tip\nO {goal}")


def test_placement_system_puts_it_at_the_end_of_the_system_text():
    guided, free = messages("tip", "system"), messages(None, "system")
    assert guided[0]["content"] == free[0]["content"] + "\nAdvice: tip"
    assert guided[1:] == free[1:]


def test_feedback_stands_on_its_own_line():
    prompt = prompts()["actor"]
    common = {"goal": "g", "observation": "o", "actions": ("a",)}
    assert following_text(prompt, feedback="", **common) == "o"
    assert following_text(prompt, feedback="no {goal}", **common) == "no {goal}\no"
