"""The result of a study as Markdown: for the terminal, `study.md`, the Prefect UI and the documentation, all the same.

The texts of a study file are marked as text, whatever they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from crl.report.markdown import plain
from crl.study.results import ArmResult, Difference, StudyResult, Success
from crl.study.statistics import Interval, Reached

NONE = "–"
NOT_REACHED = "not reached"


def study_markdown(result: StudyResult) -> str:
    """Every table of a result."""
    titles = {arm.arm: arm.title for arm in result.arms}
    parts = [f"# {plain(result.name)}"]
    if result.question:
        parts.append(plain(result.question))
    parts.append(" ".join(seed_words(result)))
    parts += _section("Held-out success", SUCCESS_COLUMNS, [success_row(arm) for arm in result.arms])
    if result.differences:
        parts += _section(
            "Paired differences", DIFFERENCE_COLUMNS, [difference_row(each, titles) for each in result.differences]
        )
    parts += _section(
        f"On the way: rounds and training episodes to {result.level:.2f}",
        LEARNING_COLUMNS,
        [learning_row(arm) for arm in result.arms],
    )
    parts += _section("Extractor and budget", HEALTH_COLUMNS, [health_row(arm) for arm in result.arms])
    parts += _section("Every seed: with bank / without", *seed_table(result.arms))
    parts += [f"- {plain(note)}" for note in notes(result)]
    return "\n\n".join(parts) + "\n"


SUCCESS_COLUMNS = ("arm", "seeds", "with bank", "without bank")
DIFFERENCE_COLUMNS = ("arm", "less", "with bank", "without bank", "pairs")
LEARNING_COLUMNS = (
    "arm", "rounds, with bank", "without", "episodes, with bank", "without", "area, with bank", "without",
)  # fmt: skip
HEALTH_COLUMNS = ("arm", "training episodes a run", "malformed", "return", "notes true", "coverage")


def success_row(arm: ArmResult) -> list[str]:
    """Final success of an arm."""
    seeds = (
        f"{len(arm.finished)}" if len(arm.finished) == len(arm.seeds) else f"{len(arm.finished)} of {len(arm.seeds)}"
    )
    return [arm.title, seeds, _mean(arm.with_bank), _mean(arm.without_bank)]


def difference_row(each: Difference, titles: Mapping[str, str]) -> list[str]:
    """One paired comparison; one at unequal episodes is marked."""
    pairs = each.without_bank.seeds if each.without_bank is not None else 0
    told = f"{pairs}" if each.equal_episodes else f"{pairs}, unequal episodes"
    return [
        titles[each.arm], titles[each.reference], interval_text(each.with_bank, signed=True),
        interval_text(each.without_bank, signed=True), told,
    ]  # fmt: skip


def learning_row(arm: ArmResult) -> list[str]:
    """When the level was reached, and the area under the curve."""
    both = (arm.with_bank, arm.without_bank)
    return [
        arm.title,
        *(reached_text(each.rounds_to_level) if each else NONE for each in both),
        *(reached_text(each.episodes_to_level) if each else NONE for each in both),
        *(interval_text(each.area) if each else NONE for each in both),
    ]


def health_row(arm: ArmResult) -> list[str]:
    """Budget, and what became of the extractor."""
    episodes = sorted(set(arm.episodes.values()))
    told = NONE if not episodes else f"{episodes[0]}" if len(episodes) == 1 else f"{episodes[0]} to {episodes[-1]}"
    shares = (arm.malformed, arm.returned, arm.notes_true, arm.coverage)
    return [arm.title, told, *(NONE if share is None else f"{share.mean:.2f}" for share in shares)]


def seed_table(arms: Sequence[ArmResult]) -> tuple[list[str], list[list[str]]]:
    """(headings, rows): final success of every arm and seed."""
    seeds = sorted({seed for arm in arms for seed in arm.seeds})
    return ["arm", *map(str, seeds)], [[arm.title, *(_seed_cell(arm, seed) for seed in seeds)] for arm in arms]


def seed_words(result: StudyResult) -> list[str]:
    """Which seeds settings were chosen on, and which are reported."""
    said = [f"Reported on seeds {_listed(result.reported_on)}."]
    if result.tuned_on:
        said.append(f"Settings were chosen on seeds {_listed(result.tuned_on)}, none of which is reported.")
    else:
        said.append("The study names no seeds that its settings were chosen on.")
    return said


def notes(result: StudyResult) -> list[str]:
    """How to read the tables, and what to be careful about."""
    last = "the last evaluation" if result.last == 1 else f"the mean of the last {result.last} evaluations"
    found = [
        f"Success is that of {last}; brackets are 95 % intervals over seeds (Student's t); differences are paired by "
        "seed, with bank against the reference with its bank, or without where it has none.",
        "Rounds and episodes to the level are medians over seeds, of the first evaluation that reached it; area is "
        "mean success over the rounds; shares of malformed and return are of all outputs of a run.",
    ]
    budgets = {episodes for arm in result.arms for episodes in arm.episodes.values()}
    if len(budgets) > 1:
        found.append("Training episodes differ: " + _budgets(result.arms) + ".")
    if result.unfinished:
        found.append(f"{result.unfinished} runs are not finished and not in these figures.")
    return found


def interval_text(value: Interval | None, *, signed: bool = False) -> str:
    """`0.51 [0.45, 0.57]`; one value has no interval."""
    if value is None:
        return NONE
    form = "{:+.2f}" if signed else "{:.2f}"
    mean = form.format(value.mean)
    text = mean if value.low is None else f"{mean} [{form.format(value.low)}, {form.format(value.high)}]"
    return text.replace("-", "−")


def reached_text(value: Reached) -> str:
    """The median, with how many seeds reached it where that is not all."""
    if value.reached == value.seeds and value.median is not None:
        return f"{value.median:g}"
    median = NOT_REACHED if value.median is None else f"{value.median:g}"
    return f"{median} ({value.reached} of {value.seeds} seeds)"


def _mean(success: Success | None) -> str:
    return NONE if success is None else interval_text(success.mean)


def _seed_cell(arm: ArmResult, seed: int) -> str:
    cells = [
        NONE if success is None or seed not in success.final else f"{success.final[seed]:.2f}"
        for success in (arm.with_bank, arm.without_bank)
    ]
    return NONE if cells == [NONE, NONE] else " / ".join(cells)


def _budgets(arms: Sequence[ArmResult]) -> str:
    return ", ".join(f"{arm.title} {health_row(arm)[1]}" for arm in arms if arm.episodes)


def _listed(seeds: Sequence[int]) -> str:
    """Seeds in words; consecutive ones as a range."""
    runs: list[list[int]] = []
    for seed in sorted(seeds):
        if runs and seed == runs[-1][-1] + 1:
            runs[-1].append(seed)
        else:
            runs.append([seed])
    return ", ".join(f"{run[0]}–{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs)


def _section(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    lines += ["| " + " | ".join(plain(cell) for cell in row) + " |" for row in rows]
    return [f"## {title}", "\n".join(lines)]
