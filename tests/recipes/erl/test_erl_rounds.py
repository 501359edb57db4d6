"""Rounds of Experiential RL: gate, contexts, memory, samples, and what reads what."""

from __future__ import annotations

import re
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from crl.audit.audit import problems_of
from crl.audit.verify import record_of
from crl.bank.segments import load_texts
from crl.config.load import load_experiment
from crl.errors import BadInput
from crl.recipes.erl.health import attempt_metrics
from crl.recipes.erl.prompts import check_ready
from crl.recipes.erl.rows import Reflection
from crl.records import (
    BankChange,
    BankEvent,
    Credit,
    Episode,
    Evaluation,
    Generation,
    Metric,
    Retrieval,
    Sample,
    StrippedContext,
    Turn,
)  # fmt: skip
from crl.report.why import why
from crl.rounds.recipe import recipe_of
from crl.run.directory import RunDirectory
from tests.marks import sampled
from tests.recipes.erl.erl_played import OWN, experiment, played
from tests.tiny_run import cut_back
from tests.unit.recipes.played import Played

ROUNDS = 3
PROMPT = experiment().method.prompts["actor"].model_dump(mode="json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("erl"), ROUNDS)


def reads(run: Played, number: int, stage: str) -> set[str]:
    """Stages that a stage read, by name."""
    return {key.split("/")[1] for key in run.run.manifest(number, stage).digested.inputs}


def metrics(run: Played, number: int) -> dict[str, float]:
    return {row.name: row.value for row in run.rows(Metric, "health", number)}


def test_a_round_is_attempts_reflections_and_attempts_again(run: Played) -> None:
    names = [stage.name for stage in run.recipe.stages_of(run.method, 1)]
    assert names == [
        "plan", "collect", "reflect", "retry", "distill", "consolidate", "credit", "update_actor", "health", "evaluate",
    ]  # fmt: skip
    assert run.recipe.trains == {"actor"} and run.method.owner("reflector") == "actor", "one set of weights"


def test_what_earned_less_than_the_gate_is_tried_again_and_nothing_else(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        first = run.rows(Episode, "collect", number)
        failed = [row.episode_id for row in first if row.reward < 1]
        assert 0 < len(failed) < len(first), "the batch has both"
        reflections = run.rows(Reflection, "reflect", number)
        assert [row.episode_id for row in reflections] == failed
        again = run.rows(Episode, "retry", number)
        assert [row.episode_id for row in again] == [f"{name}-a2" for name in failed]
        seeds = {row.episode_id: row.environment_seed for row in first}
        assert all(row.environment_seed == seeds[row.episode_id.removesuffix("-a2")] for row in again), "the same task"
        assert {row.stream for row in first} == {"first"} and {row.stream for row in again} == {"second"}


@pytest.mark.slow
def test_where_all_succeed_nothing_is_reflected_on(tmp_path: Path) -> None:
    lucky = played(tmp_path, 1, luck=1.0)
    assert all(row.success for row in lucky.rows(Episode, "collect", 1))
    for row_type, stage in ((Reflection, "reflect"), (Generation, "reflect"), (Episode, "retry")):
        assert lucky.rows(row_type, stage, 1) == []  # type: ignore[type-var]
    assert lucky.services.read["reflector"] == []
    assert {row.objective for row in lucky.rows(Sample, "credit", 1)} == {"grpo"}
    assert metrics(lucky, 1)["gate_rate"] == 0.0 and "retry_gain" not in metrics(lucky, 1)


def test_the_reflection_alone_replaces_the_instructions_and_the_attempt_before_is_not_seen(run: Played) -> None:
    checked = {"ok": 0, "empty_text": 0}
    for number in range(1, ROUNDS + 1):
        prompts = {row.generation_id: row.prompt for row in run.rows(Generation, "collect", number)}
        again = {row.generation_id: row for row in run.rows(Generation, "retry", number)}
        turns = run.rows(Turn, "retry", number)
        for row in run.rows(Reflection, "reflect", number):
            record, before = again[f"{row.retry_id}-retry"], prompts[f"{row.episode_id}-collect"]
            checked[row.reason_code] += 1
            own = f"[system]\n{OWN}\n\n"
            assert before.startswith(own)
            wanted = before if row.text is None else f"[system]\n{row.text}\n\n" + before.removeprefix(own)
            assert record.prompt == wanted
            mine = [turn for turn in turns if turn.episode_id == row.retry_id]
            assert record.token_ids[: mine[0].first_token].count(2) == 2, "one system and one user message, no more"
    assert min(checked.values()) > 0, "good and malformed reflections"


def test_the_reflector_reads_attempt_feedback_instructions_and_memory(run: Played) -> None:
    read, refused, seen = 0, 0, run.services.read["reflector"]
    rows = [row for number in range(1, ROUNDS + 1) for row in run.rows(Reflection, "reflect", number)]
    assert len(seen) == len(rows)
    for prompt, row in zip(seen, rows, strict=True):
        assert OWN in prompt and row.feedback in prompt and "wait" in prompt
        refused += "no possible action" in row.feedback
        outcome = re.search(r"(?:^|\. )The episode ended: (failure|turn limit)\. Reward: (\S+)\.$", row.feedback)
        assert outcome is not None and float(outcome[2]) == row.reward, "and the outcome"
        if row.entry_ids:
            bank = run.run.read(row.round - 1, "consolidate", BankChange)
            texts = load_texts(run.run.path, bank)
            assert all(texts[digest] in prompt for digest in row.content_digests if digest in texts)
            read += 1
        else:
            assert prompt.endswith("none\n")
    assert read > 0, "the memory of round 1 was read in round 2"
    assert refused > 0, "what was said of the last action"
    assert all(not row.entry_ids for row in rows if row.round == 1), "the memory begins empty"


def test_first_attempts_and_evaluation_never_read_the_memory(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        assert reads(run, number, "plan") == set()
        assert reads(run, number, "collect") == {"plan", "initialize" if number == 1 else "update_actor"}
        assert reads(run, number, "evaluate") == {"update_actor"}
        assert "consolidate" in reads(run, number, "reflect") or number == 1
        held_out = run.rows(Evaluation, "evaluate", number)
        assert {row.condition for row in held_out} == {"without_bank"} and not any(row.guided for row in held_out)
        assert not any(row.guided for row in run.rows(Episode, "collect", number))
        assert not any("win" in row.prompt or "lose" in row.prompt for row in run.rows(Generation, "collect", number))


def test_no_prompt_of_an_evaluation_shows_a_reflection_or_a_memory(run: Played) -> None:
    rows = [row for number in range(1, ROUNDS + 1) for row in run.rows(Reflection, "reflect", number)]
    texts, seen = {row.text for row in rows if row.text is not None}, run.services.read_in
    assert any(text in prompt for text in texts for prompt in seen[1, "retry"]), "they are seen where they are shown"
    for number in range(ROUNDS + 1):
        held_out = [row for row in run.rows(Evaluation, "evaluate", number) if row.condition != "random"]
        prompts = seen[number, "evaluate"]
        assert 0 < len(prompts) == sum(row.turns for row in held_out), "one prompt a turn"
        assert all(prompt.startswith(OWN) and not any(text in prompt for text in texts) for prompt in prompts)


def test_a_reflection_enters_the_memory_where_its_attempt_succeeded(run: Played) -> None:
    held: set[tuple[str, str]] = set()
    for number in range(1, ROUNDS + 1):
        won = {row.episode_id for row in run.rows(Episode, "retry", number) if row.success}
        wanted = []
        for row in run.rows(Reflection, "reflect", number):
            if row.text is not None and row.retry_id in won and (row.family, row.text) not in held:
                held.add((row.family, row.text))
                wanted.append(f"x-{row.reflection_id}-o0")
        events = run.rows(BankEvent, "consolidate", number)
        assert [row.entry_id for row in events if row.kind == "add"] == wanted
        assert {row.reason for row in events if row.kind == "rejected"} <= {"duplicate"}
    assert held == {("lake", "win, this way"), ("lake", "win, that way")}


def test_the_story_of_a_memory_leads_to_its_attempts(run: Played) -> None:
    [first, *_] = [row for row in run.rows(BankEvent, "consolidate", 1) if row.kind == "add"]
    story = why(run.run.path, str(first.entry_id))
    assert [(each.success, each.episode_id.endswith("-a2")) for each in story.events[0].episodes] == [
        (False, False), (True, True),
    ]  # fmt: skip
    writing = story.events[0].writing
    assert writing is not None and writing.output == story.events[0].text and writing.checkpoint == "tiny"


@pytest.mark.slow
def test_what_a_memory_did_is_credited_to_it(run: Played) -> None:
    """A malformed reflection guided nobody, whatever was read for it."""
    credited = passed_over = 0
    for number in range(1, ROUNDS + 1):
        won = {row.episode_id: row.success for row in run.rows(Episode, "retry", number)}
        good = {row.retry_id for row in run.rows(Reflection, "reflect", number) if row.text is not None}
        read = [row for row in run.rows(Retrieval, "reflect", number) if row.chosen]
        shown = [row for row in read if row.episode_id in good]
        passed_over += len(read) - len(shown)
        credits = run.rows(Credit, "credit", number)
        assert [(row.episode_id, row.entry_id) for row in credits] == [(row.episode_id, row.entry_id) for row in shown]
        assert all(row.outcome == (1 if won[row.episode_id] else -1) for row in credits)
        credited += len(credits)
        for row in credits:
            [use] = [use for use in why(run.run.path, row.entry_id).uses if use.episode_id == row.episode_id]
            assert (use.success, use.outcome) == (won[row.episode_id], row.outcome) and use.similarity is not None
    assert credited > 0 and passed_over > 0


def test_every_stream_is_trained_in_its_own_group_and_a_reflection_earns_what_it_led_to(run: Played) -> None:
    samples = run.rows(Sample, "credit", 2)
    rewards = {row.episode_id: row for stage in ("collect", "retry") for row in run.rows(Episode, stage, 2)}
    reflections = {row.generation_id: row for row in run.rows(Reflection, "reflect", 2)}
    groups: dict[tuple[int, str], list[Sample]] = defaultdict(list)
    for sample in (sample for sample in samples if sample.objective == "grpo"):
        if sample.role == "reflector":
            episode, stream = rewards[reflections[sample.generation_id].retry_id], "reflection"
        else:
            episode = rewards[sample.generation_id.rpartition("-")[0]]
            stream = episode.stream
        assert sample.reward == episode.reward and sample.weight == pytest.approx(1 / len(samples))
        groups[episode.group, stream].append(sample)
    assert {stream for _, stream in groups} == {"first", "reflection", "second"}
    for members in groups.values():
        mean = sum(each.reward for each in members) / len(members)
        deviation = (sum((each.reward - mean) ** 2 for each in members) / len(members)) ** 0.5
        for each in members:
            expected = each.reward if len(members) == 1 else (each.reward - mean) / deviation if deviation else 0.0
            assert each.advantage == pytest.approx(expected)


def test_what_succeeded_by_a_reflection_is_learned_in_the_context_of_the_first_prompt(run: Played) -> None:
    learned = 0
    for number in range(1, ROUNDS + 1):
        first = {row.episode_id: row for row in run.rows(Episode, "collect", number)}
        opening = {row.generation_id: row for row in run.rows(Generation, "collect", number)}
        again = {row.generation_id: row for row in run.rows(Generation, "retry", number)}
        starts: dict[str, int] = {}
        for turn in run.rows(Turn, "collect", number):
            starts.setdefault(turn.episode_id, turn.first_token)
        samples = [row for row in run.rows(Sample, "credit", number) if row.objective == "nll"]
        won = [row for row in run.rows(Episode, "retry", number) if row.reward > 0]
        assert [row.generation_id for row in samples] == [row.generation_ids[0] for row in won]
        total = sum(sum(row.loss_mask) for row in samples)
        for sample, episode in zip(samples, won, strict=True):
            before = first[episode.episode_id.removesuffix("-a2")]
            prompt = opening[before.generation_ids[0]].token_ids[: starts[before.episode_id]]
            record = again[sample.generation_id]
            own = record.loss_mask.index(1)
            # Token for token: the first attempt's prompt, then everything from the second one's first sampled id on.
            assert sample.token_ids == prompt + record.token_ids[own : own + len(sample.token_ids) - len(prompt)]
            assert (
                sample.loss_mask
                == [0] * len(prompt) + record.loss_mask[own : own + len(sample.token_ids) - len(prompt)]
            )
            assert sum(sample.loss_mask) == sum(record.loss_mask) and sample.loss_mask[-1] == 1
            count = len(run.rows(Sample, "credit", number))
            assert sample.weight == pytest.approx(episode.reward * total / count)
            learned += 1
        guided = {row.episode_id for row in run.rows(Episode, "retry", number) if row.guided}
        assert {row.episode_id for row in run.rows(StrippedContext, "retry", number)} == guided
    assert learned > 0


def test_the_metrics_of_a_round(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        first, again = run.rows(Episode, "collect", number), run.rows(Episode, "retry", number)
        reflections, found = run.rows(Reflection, "reflect", number), metrics(run, number)
        assert found["gate_rate"] == len(again) / len(first)
        assert found["retry_gain"] == pytest.approx(sum(row.reward for row in again) / len(again)), "r1 is 0 here"
        assert found["success_first"] == sum(row.success for row in first) / len(first)
        assert found["success_best"] == (sum(row.success for row in first) + sum(row.success for row in again)) / 16
        assert found["memory_reads"] == sum(bool(row.entry_ids) for row in reflections)
        events = run.rows(BankEvent, "consolidate", number)
        assert found["memory_writes"] == sum(row.kind == "add" for row in events)
        samples = run.rows(Sample, "credit", number)
        assert found["distilled_samples"] == sum(row.objective == "nll" for row in samples)
    assert attempt_metrics([], []) == {}


@pytest.mark.slow
def test_the_record_is_intact_and_the_same_again(run: Played, tmp_path: Path) -> None:
    directory = RunDirectory.open(run.run.path)
    assert problems_of(directory, run.recipe, record_of(run.run.path)) == []
    assert played(tmp_path, ROUNDS).digests() == run.digests()


@pytest.mark.parametrize(
    "stage", sampled(["reflect", "retry", "credit", "collect", "distill", "consolidate", "health"], 7)
)
def test_whatever_is_lost_is_made_again_with_the_same_digests(run: Played, tmp_path: Path, stage: str) -> None:
    copied = shutil.copytree(run.run.path, tmp_path / run.run.path.name)
    cut_back(copied, 2, stage)
    assert not (copied / f"rounds/0002/{stage}").exists() and not (copied / "rounds/0003/plan").exists()
    assert played(tmp_path, ROUNDS).digests() == run.digests()


@pytest.mark.slow
def test_a_further_revision_reads_the_instructions_that_failed_and_keeps_them_without_others(tmp_path: Path) -> None:
    twice = played(tmp_path, 1, luck=0.0, method__recipe__revisions=2)
    names = [stage.name for stage in twice.recipe.stages_of(twice.method, 1)]
    assert names[1:6] == ["collect", "reflect", "retry", "reflect_2", "retry_2"]
    failed = [row for row in twice.rows(Episode, "retry", 1) if row.reward < 1]
    second = twice.rows(Reflection, "reflect_2", 1)
    assert [row.episode_id for row in second] == [row.episode_id for row in failed] and second
    assert [row.episode_id for row in twice.rows(Episode, "retry_2", 1)] == [row.retry_id for row in second]
    prompts = {row.generation_id: row.prompt for row in twice.rows(Generation, "reflect_2", 1)}
    played_by = {row.episode_id: row for row in failed}
    bad = [row for row in second if played_by[row.episode_id].experience == "lose"]
    assert bad and all("lose" in prompts[row.generation_id] for row in bad), "it reads the instructions that failed"
    # A malformed reflection leaves what the attempt before went by.
    kept = {row.episode_id: row.experience for row in twice.rows(Episode, "retry_2", 1)}
    assert all(kept[row.retry_id] == (row.text or played_by[row.episode_id].experience) for row in second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({"memory": None}, {"distill", "consolidate"}),
        ({"memory": None, "reflect": None}, {"distill", "consolidate", "reflect"}),
        ({"internalize": None}, set()),
        ({"gate": None}, set()),
    ],
    ids=["no memory", "no reflection", "no internalization", "no gate"],
)
def test_each_mechanism_can_be_left_out(tmp_path: Path, changes: dict[str, None], missing: set[str]) -> None:
    without = played(tmp_path, 2, **{f"method__recipe__{key}": value for key, value in changes.items()})
    stages = {stage.name for stage in without.recipe.stages_of(without.method, 2)}
    whole = {stage.name for stage in recipe_of(experiment().method).stages}
    assert whole - stages - {"approve"} == missing
    if "reflect" not in changes:
        learned = {"nll"} if "internalize" not in changes else set()
        assert {row.objective for row in without.rows(Sample, "credit", 2)} == {"grpo"} | learned
    if "gate" in changes:
        assert len(without.rows(Episode, "retry", 2)) == len(without.rows(Episode, "collect", 2))
    if "reflect" in changes:
        assert not any(row.guided for row in without.rows(Episode, "retry", 2))
        assert {row.role for row in without.rows(Sample, "credit", 2)} == {"actor"}


@pytest.mark.slow
@pytest.mark.parametrize(("order", "most"), sampled([("recency", 2), ("last", 1)], 2))
def test_the_memory_by_age(tmp_path: Path, order: str, most: int) -> None:
    aged = played(tmp_path, 2, method__recipe__memory__order=order)
    bank = aged.run.read(1, "consolidate", BankChange).sort_by([("order", "descending")])
    newest = bank["entry_id"].to_pylist()[:most]
    rows = aged.rows(Reflection, "reflect", 2)
    assert newest and rows and all(row.entry_ids == newest for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("order", sampled(["last", "recency"], 2))
def test_of_two_families_last_shows_the_newest_of_both_and_recency_that_of_ones_own(tmp_path: Path, order: str) -> None:
    family = experiment().method.families[0].model_dump(mode="json")
    families = [{**family, "name": name} for name in ("lake", "pond")]
    bank = {"capacity": 64, "duplicates": "keep"}
    run = played(
        tmp_path, 2, method__families=families, method__recipe__memory__order=order, method__recipe__bank=bank,
    )  # fmt: skip
    entries = run.run.read(1, "consolidate", BankChange).sort_by("order").to_pylist()
    newest = {each["family"]: each["entry_id"] for each in entries}
    rows = run.rows(Reflection, "reflect", 2)
    assert len(newest) == len({row.family for row in rows}) == 2, "both remember, and both reflect"
    shown = {row.family: row.entry_ids[0] for row in rows}
    assert shown == (newest if order == "recency" else dict.fromkeys(newest, entries[-1]["entry_id"]))


@pytest.mark.slow
def test_a_family_has_its_own_group_size_prompts_and_sampling(tmp_path: Path) -> None:
    own = {"actor": {**PROMPT, "system": "win, always"}}
    family = {"group_size": 3, "prompts": own, "sampling": {"temperature": 0.5}}
    run = played(tmp_path, 1, **{f"method__families__0__{key}": value for key, value in family.items()})
    first, groups = run.rows(Episode, "collect", 1), run.method.families[0].groups
    assert len(first) == 3 * groups and all(each.success for each in first), "they go by their family's instructions"
    assert {row.temperature for row in run.rows(Generation, "collect", 1)} == {0.5}


@pytest.mark.parametrize(
    ("key", "value", "where"),
    [
        ("method.rollout.search_and_ask", {}, "method.rollout.search_and_ask"),
        ("method.recipe.reflect", None, "method.recipe.memory"),
        ("method.families.0.reward", {"success": 1, "failure": -1}, "method.families.0.reward"),
        ("method.families.0.bank", {"partition": "shared"}, "method.families.0.bank.partition"),
        ("method.recipe.bank.duplicates", "near", "method.recipe.bank.duplicates"),
        ("method.roles.reflector.sampling.constrain", "actions", "method.roles.reflector.sampling.constrain"),
    ],
)
def test_what_cannot_work_is_refused_where_it_is_set(key: str, value: object, where: str) -> None:
    with pytest.raises(BadInput) as refused:
        load_experiment(Path("conf/erl_tiny.yaml"), {key: value})
    assert refused.value.where is not None and where in refused.value.where


def test_leaving_reflections_out_says_what_else_to_set() -> None:
    with pytest.raises(BadInput, match=r"set method\.recipe\.memory to null"):
        load_experiment(Path("conf/erl_tiny.yaml"), {"method.recipe.reflect": None})


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("method.prompts.reflect.first", '"Say why. {trajectory} {feedback}"', "does not show {memory}"),
        ("method.roles.reflector.sampling.max_new_tokens", 380, "with a reflection of 380 in its system text"),
    ],
)
def test_a_prompt_that_shows_no_memory_and_a_reflection_without_room_are_refused(
    key: str, value: object, found: str, tmp_path: Path
) -> None:
    small = {"method.roles.actor.context": 400, "method.roles.reflector.context": 1000}
    check_ready(load_experiment(Path("conf/erl_tiny.yaml"), small).method, tmp_path)
    with pytest.raises(BadInput, match=re.escape(found)):
        check_ready(load_experiment(Path("conf/erl_tiny.yaml"), {**small, key: value}).method, tmp_path)
