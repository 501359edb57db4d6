"""How a judge comes into the rounds of a recipe, whichever it is; and what is checked of it before work starts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from crl.config import Method, PromptConfig
from crl.config.method import JUDGE
from crl.errors import BadInput
from crl.protocols import Chat
from crl.records import Verdict, Weights
from crl.rounds.judge import FORM, OK, SCORES, TOP, parse_scores
from crl.rounds.ready import chat_of
from crl.rounds.stage import Read, Recipe, Stage
from crl.rounds.weights import update_name
from crl.text.outputs import check_room


def with_judge(recipe: Recipe, method: Method) -> Recipe:
    """The recipe whose stages that play read a judge, where a family has one. Warm starts imitate and read none."""
    if not method.judged:
        return recipe
    read = Read(update_name(method.owner(JUDGE)), 0, JUDGE)

    def reading(stage: Stage) -> Stage:
        if Weights in stage.writes or not {row.table for row in stage.writes} & {"episodes", "evaluations"}:
            return stage
        return replace(stage, reads=(*stage.reads, read), writes=(*stage.writes, Verdict))

    def check_ready(method: Method, run_path: Path) -> None:
        recipe.check_ready(method, run_path)
        check_judge(method, chat_of(method, JUDGE))

    return replace(
        recipe,
        preparation=tuple(map(reading, recipe.preparation)),
        stages=tuple(map(reading, recipe.stages)),
        initial={read.stage: "initialize", **recipe.initial},
        check_ready=check_ready,
    )


def check_judge(method: Method, chat: Chat) -> None:
    """Raise BadInput where the judge of a method cannot write a score, or a rubric leaves no room for anything."""
    role = method.role(JUDGE)
    for family in method.judged:
        assert family.reward is not None and family.reward.judge is not None
        system = f"{family.reward.judge}\n\n{FORM[family.reward.mode]}".replace("{", "(")
        check_room(
            chat, PromptConfig(system=system, first="Task:"), (), what="the judge's rubric",
            where=f"family {family.name}, reward.judge", role=JUDGE, context=role.context,
            new=max(len(chat.answer(score)) for score in SCORES),
        )  # fmt: skip
    for score in SCORES if not role.engine.REMOTE else ():
        written = chat.decode(chat.answer(score))
        if parse_scores(written, 1, thinking=chat.opens_thought) != (OK, [int(score) / TOP]):
            raise BadInput(
                f"the tokenizer of the judge cannot write the score {score}: it becomes {written!r}",
                expected="a tokenizer with digits",
                where=f"method.roles.{method.owner(JUDGE)}.model",
                next_step="use another model",
            )
