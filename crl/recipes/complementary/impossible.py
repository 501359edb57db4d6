"""Settings that would do nothing of what they ask for: recorded games, trials, suppression, credit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from crl.config import ExtractorObjective, Method, SuppressConfig, TrialConfig, WarmStartConfig
from crl.credit.rules import rule_of
from crl.errors import BadInput


def trial_problems(
    trial: TrialConfig | None,
    suppress: SuppressConfig | None,
    objective: ExtractorObjective,
    guided: Iterable[tuple[int, int]],
    *,
    trains_extractor: bool,
) -> Iterator[BadInput]:
    """Each combination that cannot work. `guided` has group sizes with the members that are guided at some time."""
    if trial is not None and trial.screen is not None:
        if trial.screen >= trial.layouts:
            yield BadInput(
                f"a note is given up after {trial.screen} layouts, and played on {trial.layouts}",
                expected="screen below layouts, or none",
                where="method.recipe.trial.screen",
                next_step="lower it, or leave it out",
            )
        if trial.threshold <= 0:
            yield BadInput(
                f"a note that is not ahead is given up, and one with a difference of {trial.threshold:g} is admitted",
                expected="a threshold above 0, or no screen",
                where="method.recipe.trial.screen",
                next_step="leave it out, or raise the threshold",
            )
    if trial is not None and trial.reward != "uses" and trains_extractor and rule_of(objective.credit).when_written:
        yield BadInput(
            f"an output is to be paid by its trial ({trial.reward}) and by credit: {objective.credit}",
            expected=f"trial.reward: uses beside credit: {objective.credit}, or another credit",
            where="method.recipe.trial.reward",
            next_step="change one of the two",
        )
    if suppress is not None and all(members == size for size, members in guided):
        yield BadInput(
            "guided_share leaves no member of a group unguided, so no text has an effect to be judged by",
            expected="a share that leaves some free, or no suppress",
            where="method.recipe.suppress",
            next_step="leave it out, or lower recipe.guided_share",
        )


def recorded_problems(start: WarmStartConfig | None, method: Method) -> Iterator[BadInput]:
    """Recorded games that this experiment cannot learn from."""
    where = "method.recipe.warm_start.recorded"
    if start is None or (start.demonstrations != "recorded" and start.recorded is None):
        return
    if start.demonstrations != "recorded" or start.recorded is None:
        yield BadInput(
            f"demonstrations is {start.demonstrations}, and recorded games are {'named' if start.recorded else 'not'}",
            expected="demonstrations: recorded with recorded: FILE, or neither",
            where=where,
            next_step="set both, or leave both out",
        )
        return
    for file in start.recorded:
        family = next((each for each in method.families if each.environment == file.environment), None)
        if family is None:
            yield BadInput(
                f"games were recorded in {file.environment.model_dump(mode='json')!r:.300}, which no family plays",
                expected="the environment of a family, with all its settings",
                where=where,
                next_step="record them with `crl env play EXPERIMENT.yaml --family FAMILY --record FILE`",
            )
            return
        seeds = family.train_seeds
        for game in file.games:
            if not seeds.start <= game.seed < seeds.start + seeds.count:
                yield BadInput(
                    f"a recorded game has seed {game.seed}, which is none that family {family.name} trains on",
                    expected=f"seeds from {seeds.start} to {seeds.start + seeds.count - 1}",
                    where=where,
                    next_step="record games of training seeds: `crl env play … --seed`",
                )
                return


def never_guided(where: str, found: str, expected: str) -> BadInput:
    """What is asked for needs guided episodes, and there are none."""
    return BadInput(
        f"{found}: what {where.removeprefix('method.')} asks for would never happen",
        expected=expected,
        where=where,
        next_step="leave it out, or change what keeps episodes free",
    )
