"""A recipe of stages without models whose held-out success is known beforehand: studies of it take seconds.

`$CRL_STUDY_FAKE` holds JSON: run name → `fail`, `kill` or `sleep`; it strikes in `evaluate` of round 2. With a marker
file behind it (`kill MARKER`) it strikes once; `sleep MARKER` writes the file and sleeps. `fail 0` fails in round 0.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from crl.config import Method, RecipeConfig, RoleUse
from crl.errors import BadInput
from crl.records import Distillation, Episode, Evaluation, Metric
from crl.rounds.context import StageContext
from crl.rounds.provenance import add_time
from crl.rounds.stage import Read, Recipe, Stage
from tests.unit.engine import fake_recipe  # its engines check no tables: the suites take seconds to import

HELD_OUT, PLAYED, OUTPUTS = 32, 4, 5
KIND = f"{__name__}:StudyConfig"
assert fake_recipe.PARTS
_main = sys.modules["__main__"].__spec__
if _main is not None and _main.name == "crl.lab.study.child":  # a run's page is looked at elsewhere: no charts here
    from tests.undrawn import draw_nothing

    draw_nothing()


def wins(recipe: str, *, bank: bool, seed: int, number: int) -> int:
    """Held-out episodes of `HELD_OUT` that are won after a round."""
    learned = number * (3 if recipe == "complementary" else 1) * (1 + seed % 2) + seed % 3
    return min(HELD_OUT, learned + (2 if bank else 0))


class StudyConfig(RecipeConfig):
    """The config of the recipe: which arm it plays."""

    kind: str = KIND
    arm: str = Field("complementary", description="complementary or baseline.")
    BUILDER: ClassVar[str] = f"{__name__}:build"

    def roles(self) -> Mapping[str, RoleUse]:
        return {"actor": RoleUse()}


def build(method: Method) -> Recipe:
    """Round 0: `prepare` and `evaluate`. Later: `collect`, `distill` but for the baseline, `evaluate`."""
    evaluate = Stage("evaluate", run=_evaluate, reads=(Read("prepare"),), writes=(Evaluation,))
    after = Stage("evaluate", run=_evaluate, reads=(Read("collect"),), writes=(Evaluation,))
    distill = Stage("distill", run=_distill, reads=(Read("collect"),), writes=(Distillation,))
    return Recipe(
        name="study-fake",
        preparation=(Stage("prepare", run=_prepare, writes=(Metric,)), evaluate),
        stages=(
            Stage("collect", run=_collect, writes=(Episode,)),
            *(() if method.recipe.arm == "baseline" else (distill,)),
            after,
        ),
    )


def _prepare(ctx: StageContext) -> None:
    ctx.write(Metric, [Metric(round=0, stage="prepare", name="start", value=1.0, alarm=None)])


def _collect(ctx: StageContext) -> None:
    ctx.write(Episode, [_episode(ctx.round, member) for member in range(PLAYED)])


def _episode(number: int, member: int) -> Episode:
    return Episode(
        episode_id=f"r{number}-m{member}", round=number, family="lake", group=0, member=member, environment_seed=0,
        guided=False, goal="", success=False, reward=0.0, turns=1,
        invalid_actions=0, tokens_read=40, tokens_sampled=2, stop_reason="failure", last_observation="", error=None,
        generation_ids=["g"],
    )  # fmt: skip


def _distill(ctx: StageContext) -> None:
    verdicts = ["malformed", "return", *["add"] * (OUTPUTS - 2)]
    rows = [
        Distillation(
            distillation_id=f"d{index}", round=ctx.round, kind="distill", family="lake", episode_id=None,
            guiding_entry_id=None, source_entry_ids=[], generation_id=f"g{index}", format="lines", reason_code="ok",
            verdict=verdict, operations=0, turns=1, turns_shown=1,
        )
        for index, verdict in enumerate(verdicts)
    ]  # fmt: skip
    ctx.write(Distillation, rows)


def _evaluate(ctx: StageContext) -> None:
    _mishap(ctx)
    recipe = ctx.method.recipe.arm
    # As in a real run: no bank before the first round, none ever for the baseline.
    banks = [False] if recipe == "baseline" or ctx.round == 0 else [False, True]
    rows = []
    for bank in banks:
        won = wins(recipe, bank=bank, seed=ctx.method.seed, number=ctx.round)
        rows += [_evaluation(ctx.round, bank, place, place < won) for place in range(HELD_OUT)]
    ctx.write(Evaluation, rows)
    for bank in banks:
        condition = "with_bank" if bank else "without_bank"
        add_time(ctx.provenance, f"play {condition}", items=HELD_OUT, seconds=HELD_OUT * (0.5 if bank else 0.25))
        if bank:
            add_time(ctx.provenance, "retrieval", items=HELD_OUT, seconds=HELD_OUT * 0.125)


def _evaluation(number: int, bank: bool, place: int, won: bool) -> Evaluation:
    condition = "with_bank" if bank else "without_bank"
    return Evaluation(
        evaluation_id=f"e{number}/{condition}/{place}", round=number, condition=condition, family="lake",
        environment_seed=place, guided=bank, entry_ids=["x"] if bank else [],
        success=won, reward=float(won), turns=1 + place % 2, invalid_actions=0,
        tokens_read=60 if bank else 40, tokens_sampled=2, stop_reason="success", actions=[],
    )  # fmt: skip


def _mishap(ctx: StageContext) -> None:
    run = next(parent.parent.name for parent in ctx.directory.parents if parent.name == "rounds")
    order, _, marker = json.loads(os.environ.get("CRL_STUDY_FAKE", "{}")).get(run, "").partition(" ")
    if not order or ctx.round != (int(marker) if order == "fail" and marker else 2):
        return
    if order == "fail":
        raise BadInput("the fake refuses", next_step="let it")
    if marker and Path(marker).exists():
        return
    if marker:
        Path(marker).write_text(str(os.getpid()))
    if order == "kill":
        os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(3600)
