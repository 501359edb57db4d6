"""`crl env check` of an environment whose episodes are programs: the built-in tiny model plays them, twice."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from crl.envs.check.conduct import Finding, tasks

if TYPE_CHECKING:
    from crl.config import FamilyConfig
    from crl.rollout.play import PlayedEpisode

_FEW = 4
"""Programs that are played."""


def check_programs(family: FamilyConfig, seconds: float) -> list[Finding]:
    """Whether programs end well, and ask the same in a second play; then, as far as `seconds` go, whether the reference
    solutions of tasks win. Raises BadInput where none can be started."""
    several: set[str] = set()
    first, again = _played(family, several)
    calls = sum(each.episode.turns for each in first)
    broken = [each for each in first if each.episode.error is not None]
    if broken:
        message = f"{len(broken)} of {len(first)} broke, the first with {broken[0].episode.error}: {broken[0].details}"
    else:
        message = f"{len(first)} programs ended, after {calls} calls"
    found = [Finding("programs", "failed" if broken else "ok", message)]
    if not broken and not calls:
        found.append(Finding("calls", "failed", "no program made a call: it does not read OPENAI_BASE_URL"))
    different = sum(_conduct(one) != _conduct(other) for one, other in zip(first, again, strict=True))
    if several:
        message = f"{len(several)} programs make several calls at once, so another run may answer them in another order"
    elif different:
        message = f"{different} of {len(first)} programs acted differently the second time, so another run may, too"
    else:
        message = f"{len(first)} programs acted the same the second time"
    found.append(Finding("determinism", "note" if several or different else "ok", message))
    return [*found, *tasks(family.environment, seconds)]


def _conduct(played: PlayedEpisode) -> list[object]:
    """All that a program asked, and what it earned."""
    return [played.raw_reward, *((turn.observation, turn.output) for turn in played.turns)]


def _played(family: FamilyConfig, several: set[str]) -> list[list[PlayedEpisode]]:
    """The same programs, played twice."""
    from crl.config import Method
    from crl.envs import make_environment
    from crl.policies import load_policy, resolve_model
    from crl.records import Task
    from crl.rollout.play import EpisodeSlot
    from crl.rollout.programs import play_programs
    from crl.run.seeds import seed_for

    prompt = {"system": "", "first": "{experience}{observation}"}
    tiny = {"model": "tiny", "sampling": {"max_new_tokens": 16}}
    method = Method.model_validate(
        {
            "families": [family.model_dump(mode="json")], "roles": {"actor": tiny, "extractor": tiny},
            "recipe": {"kind": "baseline"}, "prompts": dict.fromkeys(("actor", "distill", "merge"), prompt),
        }
    )  # fmt: skip
    role, seeds = method.role("actor"), range(family.train_seeds.start, family.train_seeds.start + _FEW)
    with closing(make_environment(family)) as environment, tempfile.TemporaryDirectory(prefix="crl-check-") as folder:
        starts = environment.reset_many(list(seeds))
        slots = [
            EpisodeSlot(
                Task(
                    episode_id=f"check-{seed}", round=0, family=family.name, group=at, member=0,
                    environment_seed=seed, stream="free", goal=start.goal, first_observation=start.observation,
                    query=start.goal,
                )
            )
            for at, (seed, start) in enumerate(zip(seeds, starts, strict=True))
        ]  # fmt: skip
        policy = load_policy(role, resolve_model("tiny").path, None, threads=1)
        return [
            play_programs(
                policy, environment, slots, method=method, seed_of=lambda episode: seed_for(0, episode),
                sampling=role.sampling, weights_digest="0" * 64, stage="check", folder=Path(folder, "programs"),
                at_once=several.add,
            )
            for _ in range(2)
        ]  # fmt: skip
