"""A mixture of six tasks through the real stages: what each task has of its own is what its rows show.

The actor is the tiny model, sampled and trained as in any run; the extractor says what a script tells it, so that the
bank has notes of every task, and is trained on that.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from crl.audit.audit import problems_of
from crl.audit.redo import set_aside
from crl.audit.verify import verify
from crl.config import Experiment
from crl.config.load import parse_experiment
from crl.engine.execute import Attempt, execute_stage
from crl.engine.services import EngineServices
from crl.protocols import Policy
from crl.records import (
    Episode,
    Evaluation,
    Generation,
    RawReward,
    Retrieval,
    Sample,
    Turn,
    Weights,
)
from crl.report.round_tables import newest_tasks
from crl.report.summary import summarize
from crl.rounds.recipe import recipe_of, recorded_bank
from crl.run.directory import RunDirectory
from crl.run.lease import Lease
from tests.learning.harness import rows
from tests.recipe_runs import HERE
from tests.unit.recipes.test_asking_run import Script

pytestmark = pytest.mark.slow

# Where MiniHack is not installed a small lake stands in: six tasks all the same.
ROOM = (
    "{kind: minihack, id: MiniHack-Room-Random-5x5-v0, max_turns: 2, held_out_moves: 1}"
    if "minihack" in HERE and find_spec("minihack")
    else "{kind: frozenlake, size_min: 4, size_max: 4, max_turns: 2, held_out_moves: 1}"
)
EXPERIMENT = f"""
name: mixture
method:
  seed: 5
  families:
    - {{name: room, environment: {ROOM}, evaluation_seeds: {{start: 1000000, count: 1}}, groups: 1}}
    - name: lake
      environment: {{kind: frozenlake, size_min: 2, size_max: 3, max_turns: 3, held_out_moves: 1}}
      groups: 2
      evaluation_seeds: {{start: 1000000, count: 1}}
      bank: {{capacity: 1}}
    - name: masked
      environment: {{kind: frozenlake, size_min: 2, size_max: 2, max_turns: 2, held_out_moves: 1, masked: true}}
      groups: 1
      group_size: 6
      evaluation_seeds: {{start: 1000000, count: 1}}
      reward: {{success: 1, failure: -1}}
      prompts:
        actor:
          system: Cross.
          first: "{{goal}}\\n{{experience}}{{observation}}\\n"
          experience: "Told: {{experience}}\\n"
        distill: {{system: Write., first: "{{trajectory}}\\n"}}
    - name: realm
      environment: {{kind: realms, longest_path: 2, max_turns: 2, held_out_moves: 1}}
      groups: 1
      evaluation_seeds: {{start: 1000000, count: 1}}
      sampling: {{constrain: actions, max_new_tokens: 12}}
      bank: {{partition: shared}}
    - name: shrine
      environment: {{kind: shrines, steps: 2, max_turns: 2}}
      groups: 1
      group_size: 4
      evaluation_seeds: {{start: 1000000, count: 1}}
      sampling: {{temperature: 0.5, max_new_tokens: 3}}
      reward: {{scale: 2, shift: -1}}
      bank: {{partition: shared}}
    - name: endless
      environment: {{kind: "tests.unit.recipes.endless:EndlessConfig"}}
      groups: 1
      evaluation_seeds: {{start: 1000000, count: 1}}
      max_turns: 2
      reward: {{scale: 10}}
  roles:
    actor: {{model: tiny, context: 1024, sampling: {{max_new_tokens: 5}}}}
    extractor: {{model: tiny, context: 1024, sampling: {{max_new_tokens: 40}}}}
  rollout: {{group_size: 2, wave_groups: 8, mixed_waves: true}}
  recipe:
    kind: complementary
    retrieval: {{embedder: lexical, threshold: -1.0}}
    merge: {{every: 0}}
    extractor_objective: {{batch: 4}}
  evaluation: {{every: 2}}
  threads: 1
  prompts: tiny
"""
SIZES = {"room": 2, "lake": 2, "masked": 6, "realm": 2, "shrine": 4, "endless": 2}
ROUNDS = 2
BOTH = range(1, ROUNDS + 1)


def note(prompt: str, turn: int, row: int) -> str:
    # Some outputs are malformed: of rewards that are all equal nothing would be learned.
    return "nothing" if row % 4 == 3 else f"ADD: note {sum(map(ord, prompt)) % 9973} {row}"


class Noting(EngineServices):
    def policy(self, role: str, weights: Weights) -> Policy:
        real = super().policy(role, weights)
        return real if role == "actor" else Script(real, note)  # type: ignore[return-value]


def experiment() -> Experiment:
    conf = Path(__file__).parents[3] / "conf"
    return parse_experiment(yaml.safe_load(EXPERIMENT), base=conf, where="mixture")


def go_on(run: RunDirectory) -> None:
    """Every stage that is missing, with services that know nothing of earlier ones."""
    recipe, services = recipe_of(run.method), Noting(run)
    with Lease.acquire(run.path, seconds=600) as lease:
        for number in range(ROUNDS + 1):
            for stage in recipe.stages_of(run.method, number):
                if not run.is_complete(number, stage.name):
                    services.begin(number, stage.name, None)
                    execute_stage(run, recipe, number, stage.name, attempt=Attempt(lease.token), services=services)
    services.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunDirectory]:
    made = RunDirectory.create_or_open(experiment(), tmp_path_factory.mktemp("mixture"))
    go_on(made)
    yield made


def by_family(found: Sequence[Any]) -> dict[str, list[Any]]:
    groups: dict[str, list[Any]] = defaultdict(list)
    for row in found:
        groups[row.family].append(row)
    return groups


def episodes(run: RunDirectory) -> list[Episode]:
    return rows(run, Episode, "collect", BOTH)


def records(run: RunDirectory, stage: str = "collect") -> dict[str, Generation]:
    return {row.generation_id: row for row in rows(run, Generation, stage, BOTH)}


def test_every_task_has_groups_of_its_size_and_is_trained(run: RunDirectory) -> None:
    played = episodes(run)
    sizes = Counter((each.round, each.family, each.group) for each in played)
    assert {(family, size) for (_, family, _), size in sizes.items()} == set(SIZES.items())
    assert Counter(family for _, family, _ in sizes) == {name: ROUNDS * (1 + (name == "lake")) for name in SIZES}
    guided = Counter(each.family for each in played if each.round == ROUNDS and each.guided)
    assert guided == {name: size * (1 + (name == "lake")) // 2 for name, size in SIZES.items()}
    assert not [each for each in played if each.error]
    samples = [each for each in rows(run, Sample, "credit", BOTH) if each.objective == "grpo"]
    assert {each.generation_id for each in samples} == {each.generation_ids[0] for each in played}
    for role in ("actor", "extractor"):
        assert rows(run, Weights, f"update_{role}", [ROUNDS])[0].updates > 0


def test_the_record_is_whole_and_every_row_holds_its_rules(run: RunDirectory) -> None:
    assert verify(run.path) == [] and not problems_of(run, recipe_of(run.method))


def test_a_task_is_sampled_by_its_own_settings(run: RunDirectory) -> None:
    kept = records(run)
    longest: dict[str, int] = Counter()
    for turn in rows(run, Turn, "collect", BOTH):
        family = turn.episode_id.split("-")[1]
        longest[family] = max(longest[family], turn.last_token - turn.first_token)
    assert longest["shrine"] <= 3 and max(longest[name] for name in ("room", "lake", "masked", "endless")) in (4, 5)
    for family, played in by_family(episodes(run)).items():
        of_task = [kept[each.generation_ids[0]] for each in played]
        assert {record.temperature for record in of_task} == {0.5 if family == "shrine" else 1.0}
        assert any(record.choices for record in of_task) is (family == "realm"), "answers of one task are constrained"
    assert all(each.invalid_actions == 0 for each in by_family(episodes(run))["realm"])


def test_a_task_has_its_own_prompts_and_shares_the_others(run: RunDirectory) -> None:
    played, kept = episodes(run), records(run)
    for each in played:
        prompt = kept[each.generation_ids[0]].prompt
        assert ("Cross." in prompt) is (each.family == "masked") is not ("Answer with one action." in prompt)
        if each.guided:
            assert ("Told: note" if each.family == "masked" else "Advice: note") in prompt
    written = records(run, "distill")
    assert len(written) == len(played)
    for name, record in written.items():
        assert ("Write." in record.prompt) is ("-masked-" in name)


def test_rewards_are_by_the_convention_of_the_task_and_the_raw_ones_are_kept(run: RunDirectory) -> None:
    raw = {each.episode_id: each.raw_reward for each in rows(run, RawReward, "collect", BOTH)}
    played = by_family(episodes(run))
    declaring = [each for name in ("masked", "shrine", "endless") for each in played[name]]
    assert raw.keys() == {each.episode_id for each in declaring}
    for each in played["masked"]:
        assert each.reward == (1 if each.success else -1) and raw[each.episode_id] == each.success
    assert all(each.reward == 2 * raw[each.episode_id] - 1 for each in played["shrine"])
    assert all(each.reward == 10 * raw[each.episode_id] for each in played["endless"])
    assert {each.reward for name in ("room", "lake", "realm") for each in played[name]} <= {0.0, 1.0}
    trained = {each.generation_id: each.reward for each in rows(run, Sample, "credit", BOTH)}
    assert all(trained[each.generation_ids[0]] == each.reward for each in declaring)
    held_out = rows(run, Evaluation, "evaluate", [ROUNDS])
    assert all(each.reward == each.success for each in held_out if each.family in ("masked", "shrine"))


def test_an_environment_without_a_limit_ends_at_that_of_its_task(run: RunDirectory) -> None:
    walks = by_family(episodes(run))["endless"]
    assert all(each.turns <= 2 for each in walks) and "turn_limit" in {each.stop_reason for each in walks}
    over = [str(each.last_observation) for each in walks if each.stop_reason == "turn_limit"]
    assert all(each.startswith("place") and each.endswith("No turns are left.") for each in over)
    assert all(each.turns <= 2 for each in rows(run, Evaluation, "evaluate", [ROUNDS]) if each.family == "endless")


def test_what_is_shared_is_searched_by_those_that_share_it(run: RunDirectory) -> None:
    bank = recorded_bank(run, recipe_of(run.method), 1)
    family_of = dict(zip(bank.table["entry_id"].to_pylist(), bank.table["family"].to_pylist(), strict=True))
    assert set(family_of.values()) == set(SIZES) and Counter(family_of.values())["lake"] == 1
    found: dict[str, set[str]] = defaultdict(set)
    for row in rows(run, Retrieval, "plan", [ROUNDS]):
        found[row.family].add(family_of[row.entry_id])
    shared = {"realm", "shrine"}
    assert found == {name: shared if name in shared else {name} for name in SIZES}


def test_the_report_has_every_task_and_their_average(run: RunDirectory) -> None:
    tasks = newest_tasks(summarize(run.path))
    assert tasks is not None and tasks.names == sorted(SIZES)
    shares = [tasks.rate("free", name).value for name in tasks.names]
    average = tasks.average("free")
    assert average is not None and average.mean == pytest.approx(sum(s for s in shares if s is not None) / len(SIZES))
    assert average.low <= average.mean <= average.high
    assert all(
        tasks.rate(condition, name).episodes for condition in ("with_bank", "without_bank") for name in tasks.names
    )


def test_a_run_that_goes_on_makes_the_same_record(run: RunDirectory) -> None:
    def digests() -> dict[tuple[int, str], str]:
        return {(n, s): run.manifest(n, s).digest for n in run.rounds() for s in run.complete_stages(n)}

    before, recipe = digests(), recipe_of(run.method)
    with Lease.acquire(run.path, seconds=60) as lease:
        names = lambda number: [each.name for each in recipe.stages_of(run.method, number)]  # noqa: E731
        set_aside(run.path, ROUNDS, "plan", names, token=lease.token)
    assert not run.is_complete(ROUNDS, "collect")
    go_on(run)
    assert digests() == before
