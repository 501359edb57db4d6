"""Which stages go with one that is set aside: everything that came after it, so that resuming makes it again.

Deciding (:func:`planned`) is apart from moving (:func:`set_aside`), so that a person can see first what goes and what
it costs. Nothing is deleted: the directories move to `damaged/<n>/rounds/…` (`crl/run/aside.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crl.audit.problem import move_away
from crl.errors import BadInput, RecordDamaged
from crl.run.aside import take_out
from crl.run.directory import complete_stages, round_numbers
from crl.run.journal import committed
from crl.run.lineage import load_lineage
from crl.run.manifest import Manifest, StageKey, key_of, parse_key
from crl.run.retention import recorded_checkpoints

Order = Callable[[int], Sequence[str]]
"""The stages of a round, in order, as the recipe has them."""


@dataclass(frozen=True)
class Plan:
    """What is set aside for one stage."""

    start: StageKey
    stages: list[StageKey]
    """Those that move, oldest first."""
    gone: list[StageKey]
    """Those that are gone already and count as taken back from then on."""
    seconds: float
    """What the stages took when they ran: about what it takes to make them again."""

    @property
    def before(self) -> StageKey | None:
        """The first stage, where it comes before the one asked for: making that again needs its pruned checkpoint."""
        first = self.stages[0] if self.stages else self.start
        return first if first < self.start and first[0] < self.start[0] else None


def planned(run_path: Path, round_number: int, stage: str, order: Order) -> Plan:
    """What :func:`set_aside` would move. Raises BadInput if there is no such stage or round, or a fork was given it."""
    everything = _all_stages(run_path, order)
    # A stage that is gone altogether can be redone as well: what came after it was made from it.
    commits = committed(run_path)
    newest = max([*round_numbers(run_path), *(number for number, _ in commits)], default=-1)
    if not (run_path / "rounds" / f"{round_number:04d}").is_dir() and round_number > newest:
        raise BadInput(
            f"there is no round {round_number} in this run",
            expected=f"a stage of a round from 0 to {newest}" if newest >= 0 else "a run with a stage",
            where=str(run_path),
            next_step="`crl status RUN` lists rounds and stages",
        )
    if stage not in order(round_number) and (round_number, stage) not in commits:
        path = run_path / "rounds" / key_of(round_number, stage)
        raise BadInput(
            f"{key_of(round_number, stage)} is no stage of this run",
            expected=f"one of {', '.join(order(round_number))}",
            where=str(path),
            next_step=f"nothing was made from it, so nothing has to be taken back: {move_away(run_path, path)}"
            if path.exists()
            else "`crl status RUN` lists rounds and stages",
        )
    affected = _affected(run_path, (round_number, stage), everything, order)
    _check_own(run_path, (round_number, stage), affected)
    # What is gone already is taken back as well: it is no loss from here on (`journal.py`).
    taken = [_from(place, list(commits), order) for place in ((round_number, stage), *affected[:1])]
    gone = sorted(set().union(*taken) - set(everything))
    return Plan((round_number, stage), affected, gone, sum(_seconds(run_path, place) for place in affected))


def set_aside(run_path: Path, round_number: int, stage: str, order: Order, *, token: int) -> list[StageKey]:
    """Move a stage and what comes after it to `damaged/<n>/`; returns what was moved, oldest first.

    After it come the stages behind it in `order`, all later rounds, and whatever read one of them. Where making them
    again needs a checkpoint that retention deleted, the stage that wrote that checkpoint is set aside too. Raises as
    :func:`planned`, and StaleAttempt if `token` does not hold the lease.
    """
    plan = planned(run_path, round_number, stage, order)
    take_out(run_path, plan.stages, plan.gone, first_round=round_number, token=token)
    return plan.stages


def _seconds(run_path: Path, place: StageKey) -> float:
    try:
        return Manifest.load(run_path / "rounds" / key_of(*place)).seconds
    except RecordDamaged:
        return 0.0


def _check_own(run_path: Path, first: StageKey, affected: Sequence[StageKey]) -> None:
    """Raise BadInput for stages that a fork was given: they were made by another method, in another run."""
    lineage = load_lineage(run_path)
    place = next((each for each in (first, *affected) if lineage.maker(*each) is not None), None)
    maker = lineage.maker(*place) if place is not None else None
    if place is None or maker is None:
        return
    why = "" if place == first else f" (making {key_of(*first)} again needs its checkpoint, which was pruned)"
    raise BadInput(
        f"{key_of(*place)} was made by {maker.experiment}, which this run was forked from{why}",
        expected="a stage that this run made",
        where="--from",
        next_step=f"take it back in {maker.experiment} with `crl redo`, or fork that one at another round",
    )


def _affected(run_path: Path, start: StageKey, everything: list[StageKey], order: Order) -> list[StageKey]:
    first = start
    while True:
        # The first may be gone altogether; its readers are found all the same.
        chosen = _from(first, everything, order) | {first}
        chosen |= _readers(run_path, chosen, everything)
        earlier = pruned_sources(run_path, chosen, everything)
        if not earlier:
            return [place for place in everything if place in chosen]
        first = min(earlier, key=everything.index)


def _from(first: StageKey, everything: list[StageKey], order: Order) -> set[StageKey]:
    names = list(order(first[0]))
    behind = set(names[names.index(first[1]) :]) if first[1] in names else {first[1]}
    return {
        (number, name)
        for number, name in everything
        # A stage the recipe does not know is not guessed at: it goes too.
        if number > first[0] or (number == first[0] and (name in behind or name not in names))
    }


def _readers(run_path: Path, chosen: set[StageKey], everything: list[StageKey]) -> set[StageKey]:
    readers: set[StageKey] = set()
    for place in everything:
        if _inputs(run_path, place) & (chosen | readers):
            readers.add(place)
    return readers


def pruned_sources(run_path: Path, chosen: set[StageKey], everything: list[StageKey]) -> list[StageKey]:
    """Stages outside `chosen` whose deleted checkpoint making `chosen` again would need, as far as rows can be read."""
    needed: set[StageKey] = set()
    for place in chosen:
        needed |= _inputs(run_path, place) or {other for other in everything if place[0] - 1 <= other[0] <= place[0]}
    places = {key_of(*place): place for place in everything}
    found = []
    for place in needed - chosen:
        try:
            checkpoints = recorded_checkpoints(run_path, place)
        except RecordDamaged:  # none, or damaged, which verification says
            continue
        for checkpoint in checkpoints:
            if not (run_path / checkpoint).is_dir():
                owner = places.get("/".join(Path(checkpoint).parts[1:3]))
                if owner is not None and owner not in chosen:
                    found.append(owner)
    return found


def _inputs(run_path: Path, place: StageKey) -> set[StageKey]:
    try:
        manifest = Manifest.load(run_path / "rounds" / key_of(*place))
    except RecordDamaged:
        return set()
    return {parse_key(key) for key in manifest.digested.inputs}


def _all_stages(run_path: Path, order: Order) -> list[StageKey]:
    found: list[StageKey] = []
    for number in round_numbers(run_path):
        names = complete_stages(run_path, number)
        known = list(order(number))
        found += [(number, name) for name in sorted(names, key=lambda name: known.index(name) if name in known else -1)]
    return found
