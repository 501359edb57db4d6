"""Rounds of DreamGym: real transitions, fits, predictions held to the truth, episodes in the model, what reads what."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from crl.envs import make_environment
from crl.policies.embedders import LexicalEmbedder
from crl.recipes.dreamgym.report import dream_rows
from crl.recipes.dreamgym.rows import DreamTask, PoolItem, Prediction, TaskValue, Transition, TransitionVector
from crl.recipes.dreamgym.validate import gap_bound
from crl.records import Episode, Evaluation, Generation, Metric, Sample, Task, Turn
from crl.report.page import render
from crl.report.round_tables import success_rows
from crl.report.success import NONE
from crl.report.summary import summarize
from tests.recipes.dreamgym.dreamgym_played import SECRET, played
from tests.unit.recipes.played import Played

ROUNDS = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Played:
    return played(tmp_path_factory.mktemp("dreamgym"), ROUNDS)


def reads(run: Played, number: int, stage: str) -> set[str]:
    """Stages that a stage read, by name."""
    return {key.split("/")[1] for key in run.run.manifest(number, stage).digested.inputs}


def metrics(run: Played, number: int, stage: str = "health") -> dict[str, float]:
    return {row.name: row.value for row in run.rows(Metric, stage, number)}


def real(run: Played, number: int) -> list[Transition]:
    """Real transitions of a round, explored and collected."""
    return [
        row for stage in ("explore", "collect") for row in run.rows(Transition, stage, number) if row.source == "real"
    ]


def test_a_round_explores_fits_is_held_to_the_truth_and_plays(run: Played) -> None:
    names = [stage.name for stage in run.recipe.stages_of(run.method, 2)]
    assert names == [
        "explore", "gather", "drift", "corpus", "update_experience", "validate", "plan", "collect", "credit",
        "update_actor", "health", "evaluate",
    ]  # fmt: skip
    assert run.recipe.trains == {"actor", "experience"}
    assert "drift" not in [stage.name for stage in run.recipe.stages_of(run.method, 1)], "there was no fit before"


def test_a_real_transition_is_what_the_environment_does(run: Played) -> None:
    """Every episode is played again, action by action, in an environment of the test's own."""
    environment = make_environment(run.method.families[0])
    checked = 0
    for number in range(1, ROUNDS + 1):
        of_episode: dict[str, list[Transition]] = defaultdict(list)
        for row in real(run, number):
            of_episode[row.episode_id].append(row)
        for stage in ("explore", "collect"):
            for turn in run.rows(Turn, stage, number):
                if turn.episode_id in of_episode and turn.turn == 0:
                    environment.reset_many([of_episode[turn.episode_id][0].environment_seed])
                if turn.episode_id not in of_episode:
                    continue
                [step] = environment.step_many({0: turn.action}).values()
                rows = {row.turn: row for row in of_episode[turn.episode_id]}
                if turn.action not in ("up", "down", "left", "right"):
                    assert turn.turn not in rows, "what names no action is answered by a rule"
                    continue
                row = rows[turn.turn]
                outcome = "continues" if not step.done else "success" if step.success else "turn_limit"
                assert (row.observation, row.action) == (turn.observation, turn.action)
                assert (row.next_observation, row.outcome) == (step.observation, outcome)
                assert row.reward == (step.reward if step.done else 0.0)
                assert row.reasoning is not None and f"goes {row.action}" in row.reasoning
                checked += 1
    assert checked > 60


def test_history_is_the_turns_before_as_far_as_they_are_shown(run: Played) -> None:
    seen = set()
    for row in run.rows(Transition, "explore", 1):
        turns = [turn for turn in run.rows(Turn, "explore", 1) if turn.episode_id == row.episode_id]
        before = [text for turn in turns[: row.turn] for text in (turn.observation, turn.action or "")]
        assert row.history == before[-4:]
        seen.add(len(row.history))
    assert seen == {0, 2, 4}


def test_held_out_transitions_are_of_seeds_that_no_fit_sees(run: Played) -> None:
    splits: Counter[str] = Counter()
    for number in range(1, ROUNDS + 1):
        for row in real(run, number):
            assert row.split == ("held_out" if row.environment_seed >= 800 else "fit")
            splits[row.split] += 1
    assert min(splits.values()) > 5


def test_no_fit_and_no_prompt_of_the_model_has_a_held_out_transition(run: Played) -> None:
    kept = {row.transition_id: row for number in range(1, ROUNDS + 1) for row in real(run, number)}
    held_out = {name for name, row in kept.items() if row.split == "held_out"}
    fitted, shown = set(), set()
    for number in range(1, ROUNDS + 1):
        fitted |= {row.generation_id.split("fit-", 1)[1] for row in run.rows(Generation, "corpus", number)}
        for stage in ("validate", "collect", *(("drift",) if number > 1 else ())):
            shown |= {name for row in run.rows(Prediction, stage, number) for name in row.neighbors}
        trained = {row.generation_id for row in run.rows(Sample, "corpus", number)}
        assert trained == {row.generation_id for row in run.rows(Generation, "corpus", number)}
    assert fitted and not fitted & held_out
    assert shown and not shown & held_out and shown <= kept.keys(), "shown are real transitions alone"
    assert fitted <= kept.keys()


def test_a_fit_learns_reasoning_and_outcome_in_the_prompt_that_a_prediction_has(run: Played) -> None:
    rows = {row.transition_id: row for row in real(run, 1)}
    records = run.rows(Generation, "corpus", 1)
    assert len(records) == sum(row.split == "fit" for row in run.rows(Transition, "explore", 1))
    for record in records:
        row = rows[record.generation_id.split("fit-", 1)[1]]
        assert record.output.startswith(f"Reasoning: {row.reasoning}\nObservation:\n{row.next_observation}\nOutcome: ")
        assert record.prompt.endswith(f"{row.observation}\nAction: {row.action}\n")
        written = [token for token, mask in zip(record.token_ids, record.loss_mask, strict=True) if mask]
        assert "".join(map(chr, written[:-1])) == record.output and written[-1] == 2, "and the end of the turn"
        assert len(set(record.loss_mask[: len(record.loss_mask) - len(written)])) == 1, "nothing of the prompt"


def test_every_epoch_learns_every_transition_once(run: Played) -> None:
    samples = run.rows(Sample, "corpus", 2)
    count = len(run.rows(Generation, "corpus", 2))
    steps = [sample.step for sample in samples]
    assert len(samples) == 2 * count and steps == sorted(steps)
    per_epoch = -(-count // 8)
    first = [sample.generation_id for sample in samples if sample.step < per_epoch]
    assert len(first) == len(set(first)) == count and max(Counter(steps).values()) == 8
    assert {(sample.role, sample.objective, sample.weight, sample.advantage) for sample in samples} == {
        ("experience", "nll", 1.0, 1.0)
    }
    assert run.services.trainers["experience"].batches, "the update saw them"


def test_a_prediction_ends_an_episode_with_a_reason_where_it_is_malformed(run: Played) -> None:
    broken, sound = 0, 0
    for number in range(1, ROUNDS + 1):
        bad = {row.episode_id: row for row in run.rows(Prediction, "collect", number) if row.reason_code != "ok"}
        trained = {row.generation_id for row in run.rows(Sample, "credit", number)}
        for episode in run.rows(Episode, "collect", number):
            if episode.episode_id in bad:
                assert episode.error == "prediction_no_observation" and episode.reward == 0
                assert bad[episode.episode_id].turn == episode.turns - 1, "it was the last turn"
                assert trained.isdisjoint(episode.generation_ids)
                broken += 1
            else:
                assert episode.error is None
                sound += 1
    assert broken > 0 < sound


def test_a_synthetic_transition_names_its_prediction_and_that_its_neighbors(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        made = [row for row in run.rows(Transition, "collect", number) if row.source == "synthetic"]
        predictions = {row.prediction_id: row for row in run.rows(Prediction, "collect", number)}
        records = {row.generation_id: row for row in run.rows(Generation, "collect", number)}
        assert made and len(made) == sum(row.reason_code == "ok" for row in predictions.values())
        for row in made:
            prediction = predictions[row.prediction_id or ""]
            assert records[prediction.generation_id].role == "experience" and len(prediction.neighbors) == 1
            assert row.next_observation in records[prediction.generation_id].output
            assert (row.split, row.reasoning_source) == ("none", "model")


def test_the_actor_reads_what_is_predicted_and_never_why(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        streams = {row.generation_ids[0]: row.stream for row in run.rows(Episode, "collect", number)}
        for record in run.rows(Generation, "collect", number):
            text = "".join(map(chr, record.token_ids))
            assert record.role == "experience" or SECRET not in text
        assert set(streams.values()) == {"synthetic", "real"}
    assert not any(SECRET in text or "goes " in text for text in run.services.read("actor"))


def test_an_action_without_a_name_is_answered_by_a_rule(run: Played) -> None:
    found = 0
    for number in range(1, ROUNDS + 1):
        streams = {row.episode_id: row.stream for row in run.rows(Episode, "collect", number)}
        asked = {(row.episode_id, row.turn) for row in run.rows(Prediction, "collect", number)}
        for turn in run.rows(Turn, "collect", number):
            if streams[turn.episode_id] == "synthetic" and turn.action is None:
                assert (turn.episode_id, turn.turn) not in asked
                assert not turn.valid and "no possible action" in (turn.feedback or "")
                found += 1
    assert found > 0


@pytest.mark.slow
def test_pools_are_first_in_first_out_and_vectors_are_kept(tmp_path: Path) -> None:
    small = {"method__recipe__store__real": 12, "method__recipe__store__synthetic": 7}
    run = played(tmp_path, 2, method__recipe__store__held_out=4, **small)
    arrived: dict[str, list[str]] = {"real": [], "synthetic": [], "held_out": []}
    for number in (1, 2):
        earlier = run.rows(Transition, "collect", number - 1) if number > 1 else []
        for row in (*earlier, *run.rows(Transition, "explore", number)):
            pool = row.source if row.source == "synthetic" else "held_out" if row.split == "held_out" else "real"
            arrived[pool].append(row.transition_id)
        items = run.rows(PoolItem, "gather", number)
        for pool, most in (("real", 12), ("synthetic", 7), ("held_out", 4)):
            assert [item.transition_id for item in items if item.pool == pool] == arrived[pool][-most:]
    assert all(len(names) > most for names, most in zip(arrived.values(), (12, 7, 4), strict=True)), "all overflowed"
    rows = run.rows(TransitionVector, "gather", 1)
    texts = {row.transition_id: f"{row.observation}\n{row.action}" for row in run.rows(Transition, "explore", 1)}
    vectors = LexicalEmbedder().embed([texts[row.transition_id] for row in rows])
    assert rows and all(row.vector == list(vector) for row, vector in zip(rows, vectors, strict=True))


def test_evaluation_sees_the_actor_alone(run: Played) -> None:
    for number in range(ROUNDS + 1):
        before = {"initialize"} if number == 0 else {"update_actor"}
        assert reads(run, number, "evaluate") == before
        assert {row.condition for row in run.rows(Evaluation, "evaluate", number)} <= {"without_bank", "random"}
    environment = make_environment(run.method.families[0])
    rows = run.rows(Evaluation, "evaluate", ROUNDS)
    for row in rows:
        environment.reset_many([row.environment_seed])
        for action in row.actions:
            [step] = environment.step_many({0: action or None}).values()
        assert (step.done, step.success) == (True, row.success), "the real environment says the same"


def test_predictions_are_compared_with_the_truth(run: Played) -> None:
    true = {row.transition_id: row for number in range(1, ROUNDS + 1) for row in real(run, number)}
    for number in range(1, ROUNDS + 1):
        rows = run.rows(Prediction, "validate", number)
        outputs = {row.generation_id: row.output for row in run.rows(Generation, "validate", number)}
        agreed = right = wrong = 0
        error = 0.0
        for row in rows:
            step, output = true[row.held_to or ""], outputs[row.generation_id]
            ended = "" if step.outcome == "continues" else f", reward {step.reward:g}"
            same = f"Observation:\n{step.next_observation}\nOutcome: " in output
            told = output.endswith(f"Outcome: {step.outcome}{ended}")
            assert (row.observation_agrees, row.outcome_agrees) == (same, told)
            agreed, right = agreed + same, right + told
            wrong += not (same and f"Outcome: {step.outcome}" in output)
            error += abs((1.0 if "reward 1" in output else 0.0) - step.reward)
        found, count = metrics(run, number, "validate"), len(rows)
        assert found["observation_agreement"] == pytest.approx(agreed / count)
        assert found["reward_accuracy"] == pytest.approx(right / count)
        assert (found["epsilon_r"], found["epsilon_p"]) == (pytest.approx(error / count), pytest.approx(wrong / count))
        assert 0 < agreed < count


def test_without_a_reward_among_the_held_out_steps_there_is_no_bound(run: Played) -> None:
    true = {row.transition_id: row for number in range(1, ROUNDS + 1) for row in real(run, number)}
    seen = set()
    for number in range(1, ROUNDS + 1):
        held = [true[row.held_to or ""] for row in run.rows(Prediction, "validate", number)]
        found, largest = metrics(run, number, "validate"), max(abs(step.reward) for step in held)
        seen.add(largest > 0)
        if not largest:
            assert "gap_bound" not in found and "gap_bound" not in metrics(run, number)
            continue
        assert found["gap_bound"] == pytest.approx(gap_bound(found["epsilon_r"], found["epsilon_p"], largest, 0.9))
    assert seen == {True, False}


def test_drift_is_what_the_fit_before_has_lost_on_fresh_steps(run: Played) -> None:
    for number in range(2, ROUNDS + 1):
        fresh = {row.transition_id for row in run.rows(Transition, "explore", number) if row.split == "held_out"}
        rows = run.rows(Prediction, "drift", number)
        assert {row.held_to for row in rows} == fresh
        agreement = sum(bool(row.observation_agrees) for row in rows) / len(rows)
        assert metrics(run, number)["drift"] == pytest.approx(
            metrics(run, number - 1)["observation_agreement"] - agreement
        )


@pytest.mark.slow
def test_the_model_of_the_fit_before_is_shown_what_it_had_in_store(tmp_path: Path) -> None:
    run = played(tmp_path, 2, method__recipe__store__top_k=16)
    had = {row.transition_id for row in run.rows(PoolItem, "gather", 1) if row.pool == "real"}
    shown, after = (
        {name for row in run.rows(Prediction, stage, 2) for name in row.neighbors} for stage in ("drift", "validate")
    )
    assert shown and shown <= had
    assert after - had, "the newer model is shown newer steps"


def test_real_steps_are_counted_in_every_round(run: Played) -> None:
    total = 0
    for number in range(1, ROUNDS + 1):
        steps = len(run.rows(Turn, "explore", number))
        synthetic = {row.episode_id for row in run.rows(Episode, "collect", number) if row.stream == "synthetic"}
        steps += sum(turn.episode_id not in synthetic for turn in run.rows(Turn, "collect", number))
        total += steps
        assert (metrics(run, number)["real_steps"], metrics(run, number)["real_steps_total"]) == (steps, total)
    shown = dream_rows(summarize(run.run.path))
    assert [row["in all"] for row in shown][-1] == str(total) and len(shown) == ROUNDS


def test_tasks_are_played_where_the_plan_says_and_their_groups_are_valued(run: Played) -> None:
    for number in range(1, ROUNDS + 1):
        tasks, origins = run.rows(Task, "plan", number), run.rows(DreamTask, "plan", number)
        assert [row.synthetic for row in origins] == [True, True, True, False], "three of four groups"
        stream = {row.group: "synthetic" if row.synthetic else "real" for row in origins}
        assert all(task.stream == stream[task.group] for task in tasks)
        episodes = run.rows(Episode, "collect", number)
        for value in run.rows(TaskValue, "credit", number):
            rewards = [row.reward for row in episodes if row.group == value.group and row.error is None]
            mean = sum(rewards) / len(rewards)
            assert value.mean == pytest.approx(mean)
            assert value.variance == pytest.approx(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))


def test_an_actor_is_trained_on_what_sets_an_episode_apart_from_its_task_in_its_environment(run: Played) -> None:
    moved = 0
    for number in range(1, ROUNDS + 1):
        samples = {row.generation_id: row for row in run.rows(Sample, "credit", number)}
        episodes = [row for row in run.rows(Episode, "collect", number) if row.generation_ids[0] in samples]
        assert len(episodes) == len(samples) and {row.stream for row in episodes} == {"synthetic", "real"}
        for episode in episodes:
            mates = [row.reward for row in episodes if (row.group, row.stream) == (episode.group, episode.stream)]
            mean = sum(mates) / len(mates)
            deviation = (sum((reward - mean) ** 2 for reward in mates) / len(mates)) ** 0.5
            apart = (episode.reward - mean) / deviation if deviation else 0.0
            expected = episode.reward if len(mates) == 1 else apart
            assert samples[episode.generation_ids[0]].advantage == pytest.approx(expected)
            moved += bool(expected)
    assert moved > 10


@pytest.mark.slow
def test_a_shorter_run_has_the_digests_of_the_longer_one(run: Played, tmp_path: Path) -> None:
    again = played(tmp_path, 1).digests()
    assert again == {key: digest for key, digest in run.digests().items() if key in again} and len(again) > 10


@pytest.mark.slow
@pytest.mark.usefixtures("plain_charts")
def test_the_page_has_a_tile_for_what_the_model_calls_won(run: Played) -> None:
    episodes = [row for row in run.rows(Episode, "collect", ROUNDS) if row.stream == "synthetic"]
    broken = sum(row.stop_reason == "error" for row in episodes)
    won = f"{sum(row.success for row in episodes)}/{len(episodes)}" + (f", {broken} broke" if broken else "")
    page = render(run.run.path)
    assert re.search(rf"<b>{won}</b><span>in the experience model, [^<]*round {ROUNDS}", page)


def test_what_the_model_calls_won_is_shown_apart_from_what_was_won(run: Played) -> None:
    rows = success_rows(summarize(run.run.path), NONE)
    for number in range(1, ROUNDS + 1):
        episodes = run.rows(Episode, "collect", number)
        shown = next(row for row in rows if row["round"] == str(number))
        for column, played_there in (
            ("free", [episode for episode in episodes if episode.stream == "real"]),
            ("in the model", [episode for episode in episodes if episode.stream == "synthetic"]),
        ):
            won = sum(episode.success for episode in played_there)
            assert played_there and shown[column].startswith(f"{won}/{len(played_there)} "), (number, column)
