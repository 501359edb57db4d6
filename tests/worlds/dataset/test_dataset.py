"""A data set with reward functions: forms of files, prompts of texts and messages, sides, rewards, what is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from hypothesis import strategies as st

from crl.config import ENVIRONMENTS, FamilyConfig, PromptConfig, SamplingConfig
from crl.envs import check_environment, make_environment
from crl.errors import BadInput
from crl.preflight import check_files, check_held_out
from crl.protocols import FreeText, Written
from crl.rollout.play import PlayedEpisode, play_wave
from crl.rollout.prompts import actor_messages, check_prompts
from crl.worlds.dataset import DatasetConfig
from crl.worlds.dataset.environment import DatasetEnvironment
from tests.unit.rollout.fakes import ScriptedPolicy, method, slots_of
from tests.worlds.dataset import rewarded

HERE = "tests.worlds.dataset.rewarded"
ROOT = Path(__file__).parents[3]
Row = dict[str, Any]


def row(number: int, **more: Any) -> Row:
    return {"prompt": f"What is {number} plus 2?", "answer": str(number + 2), "level": number % 3, **more}


def lines(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in rows), encoding="utf-8")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return lines(tmp_path / "sums.jsonl", [row(number) for number in range(60)])


def config(data: Path | str, reward: str | list[str] = "correct", **more: Any) -> DatasetConfig:
    named = [f"{HERE}:{each}" for each in ([reward] if isinstance(reward, str) else reward)]
    found = ENVIRONMENTS.validate({"kind": "dataset", "data": str(data), "reward": named, **more})
    assert isinstance(found, DatasetConfig)
    return found


def prompts_in(environment: DatasetEnvironment, seeds: range) -> list[str]:
    return [start.observation for start in environment.reset_many(seeds)]


def all_prompts(found: DatasetConfig) -> tuple[set[str], set[str]]:
    """Those of training, and held-out ones."""
    environment, sides = found.make(), found.sides()
    held = range(1_000_000, 1_000_000 + len(sides.held_out))
    return set(prompts_in(environment, range(len(sides.training)))), set(prompts_in(environment, held))


def jsonl(path: Path, rows: list[Row]) -> str:
    return str(lines(path / "rows.jsonl", rows))


def json_list(path: Path, rows: list[Row]) -> str:
    (path / "rows.json").write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return str(path / "rows.json")


def json_of_lines(path: Path, rows: list[Row]) -> str:
    return str(lines(path / "rows.json", rows))


def parquet(path: Path, rows: list[Row]) -> str:
    pq.write_table(pa.Table.from_pylist(rows), path / "rows.parquet")
    return str(path / "rows.parquet")


def comma_separated(path: Path, rows: list[Row]) -> str:
    cells = "".join(f'"{each["prompt"]}",{each["answer"]},{each["level"]}\n' for each in rows)
    (path / "rows.csv").write_text(f"prompt,answer,level\n{cells}", encoding="utf-8")
    return str(path / "rows.csv")


def saved(path: Path, rows: list[Row]) -> str:
    """As `datasets.save_to_disk` writes it."""
    path.mkdir(parents=True, exist_ok=True)
    table = pa.Table.from_pylist(rows)
    with pa.ipc.new_stream(str(path / "data-00000-of-00001.arrow"), table.schema) as stream:
        stream.write_table(table)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    return str(path)


def saved_with_splits(path: Path, rows: list[Row]) -> str:
    (path / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test"]}))
    saved(path / "test", [row(1000)])
    saved(path / "train", rows)
    return str(path)


FORMS = (jsonl, json_list, json_of_lines, parquet, comma_separated, saved, saved_with_splits)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_every_form_of_file_gives_the_same_tasks(form: Callable[[Path, list[Row]], str], tmp_path: Path) -> None:
    found = config(form(tmp_path, [row(number) for number in range(30)]), test_size=0.3)
    training, held = all_prompts(found)
    assert training | held == {row(number)["prompt"] for number in range(30)} and not training & held
    environment = found.make()
    start = environment.reset_many([0])[0]
    right = environment._slots[0].task.columns["answer"]
    assert environment.step_many({0: f" {right} "})[0].success and start.messages == ()


@pytest.mark.slow
def test_a_folder_that_datasets_saved_and_a_snapshot_of_the_hub_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [row(number) for number in range(40)]
    splits = {"train": rows[:30], "eval": rows[25:]}
    both = datasets.DatasetDict({name: datasets.Dataset.from_list(part) for name, part in splits.items()})
    both.save_to_disk(str(tmp_path / "saved"))
    training, held = all_prompts(config(tmp_path / "saved", test_split="eval"))
    assert held == {each["prompt"] for each in rows[25:]} and training == {each["prompt"] for each in rows[:25]}
    commit = "a" * 40
    folder = tmp_path / "hub" / "datasets--org--sums"
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(commit)
    for name, part in (("train", rows[:30]), ("test", rows[30:])):
        lines(folder / "snapshots" / commit / f"{name}.jsonl", part)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    for name in ("org/sums", f"org/sums@{commit}"):
        training, held = all_prompts(config(name, test_split="test"))
        assert held == {each["prompt"] for each in rows[30:]} and training == {each["prompt"] for each in rows[:30]}


def test_messages_are_shown_as_they_are_with_their_own_system_text(tmp_path: Path) -> None:
    system, earlier = {"role": "system", "content": "Be brief."}, [
        {"role": "user", "content": "What is 1 plus 1?"}, {"role": "assistant", "content": "2"},
    ]  # fmt: skip
    asked = [{"role": "user", "content": [{"type": "text", "text": f"What is {n} plus 2?"}]} for n in range(30)]
    rows = [{"prompt": [system, *earlier, each], "answer": "0"} for each in asked]
    environment = config(lines(tmp_path / "rows.jsonl", rows), test_size=0.3).make()
    start = environment.reset_many([0])[0]
    content = yaml.safe_load((ROOT / "conf/prompts/dataset.yaml").read_text(encoding="utf-8"))
    prompts = {name: PromptConfig.model_validate(each) for name, each in content.items()}
    check_prompts(prompts)

    def shown(experience: str | None = None, **more: Any) -> list[dict[str, str]]:
        return actor_messages(
            prompts["actor"], goal=start.goal, observation=start.observation, actions=start.actions,
            experience=experience, own=start.messages, **{"placement": "user", **more},
        )  # fmt: skip

    assert shown() == [system, *earlier, {"role": "user", "content": start.observation}], "what TRL would send"
    guided = shown("Add carefully.")
    assert guided[:-1] == [system, *earlier] and guided[-1]["content"].endswith(start.observation)
    assert "Add carefully." in guided[-1]["content"]
    assert shown("Add carefully.", placement="system")[0]["content"].startswith("Be brief.\n")
    assert environment.step_many({0: "0"})[0].success, "its completions are messages"


def test_a_row_without_a_system_text_is_shown_without_one(data: Path) -> None:
    content = yaml.safe_load((ROOT / "conf/prompts/dataset.yaml").read_text(encoding="utf-8"))
    start = config(data).make().reset_many([0])[0]
    messages = actor_messages(
        PromptConfig.model_validate(content["actor"]), goal=start.goal, observation=start.observation,
        actions=start.actions, experience=None, placement="user", own=start.messages,
    )  # fmt: skip
    assert messages == [{"role": "user", "content": start.observation}]


PROMPTS = st.lists(st.text("ab ?", min_size=1, max_size=6).filter(str.strip), min_size=1, max_size=30)


@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(rows=PROMPTS, seed=st.randoms())
def test_which_side_a_prompt_is_on_follows_from_the_prompt_alone(
    rows: list[str], seed: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("rows")
    kept = [{"prompt": f"row {number}", "answer": ""} for number in range(40)]
    others = [{"prompt": prompt, "answer": str(number % 2)} for number, prompt in enumerate(rows)]
    both = [*kept, *others]
    seed.shuffle(both)
    before = all_prompts(config(lines(folder / "before.jsonl", kept), test_size=0.4))
    after = all_prompts(config(lines(folder / "after.jsonl", both), test_size=0.4))
    assert not after[0] & after[1]
    assert before[0] <= after[0] and before[1] <= after[1]


def test_equal_rows_count_once_and_rows_of_one_prompt_share_a_side(tmp_path: Path) -> None:
    rows = [row(number) for number in range(40)]
    path = lines(tmp_path / "rows.jsonl", [*rows, *rows[:7], {**rows[0], "answer": "other"}])
    sides = config(path, test_size=0.3).sides()
    assert sides.repeated == 7 and len(sides.training) + len(sides.held_out) == 41
    of_first = [rows[0]["prompt"] in {task.prompt for task in side} for side in (sides.training, sides.held_out)]
    assert sum(of_first) == 1


def test_the_rewards_are_those_of_the_functions(data: Path) -> None:
    """One hundred completions, one at a time as here and all at once as in TRL."""
    environment = config(data, ["correct", "length", "prompted", "strict"], reward_weights=[1, 0.5, 2, -1]).make()
    texts = ["", " 7 ", "a long answer", "<think>2 + 2</think>\n4"]
    tasks, actions, found = [], [], []
    for number in range(100):
        environment.reset_many([number])
        task = environment._slots[0].task
        right = str(task.columns["answer"])
        text = right if number % 3 == 0 else texts[number % len(texts)]
        actions.append(Written(text, range(number)))
        tasks.append(task)
        found.append(environment.step_many({0: actions[-1]})[0])
    kwargs = {name: [task.columns[name] for task in tasks] for name in ("answer", "level")}
    logs: list[Any] = []
    more = {"log_metric": lambda *said: logs.append(said), "log_extra": lambda *said: None, "trainer_state": None}
    given: dict[str, Any] = {
        "prompts": [task.prompt for task in tasks],
        "completions": list(map(str, actions)),
        "completion_ids": [list(each.token_ids) for each in actions],
    }
    expected = {
        "correct": rewarded.correct(given["completions"], **kwargs),
        "length": rewarded.length(given["completion_ids"]),
        "prompted": rewarded.prompted(**given, **kwargs, **more),
        "strict": [
            rewarded.strict([text], [right])[0]
            for text, right in zip(given["completions"], kwargs["answer"], strict=True)
        ],
    }
    weights = {"correct": 1, "length": 0.5, "prompted": 2, "strict": -1}
    assert any(value is None for value in expected["prompted"]) and 1.0 in expected["correct"]
    for at, step in enumerate(found):
        parts = {name: values[at] for name, values in expected.items() if values[at] is not None}
        assert step.reward_parts == {"characters": float(len(actions[at])), **parts}
        assert step.reward == pytest.approx(sum(weights[name] * value for name, value in parts.items()), abs=1e-12)
        assert step.success == (step.reward >= 1 - 1e-9) and step.done and step.error is None


def test_a_function_that_changes_what_it_is_given_changes_no_row(tmp_path: Path) -> None:
    rows = [
        {"prompt": [{"role": "user", "content": str(number)}], "meta": {"right": number + 1}} for number in range(40)
    ]
    environment = config(lines(tmp_path / "rows.jsonl", rows), "greedy").make()
    found = []
    for _ in range(3):
        (start,) = environment.reset_many([0])
        found.append((start.messages, start.observation, environment.step_many({0: "x"})[0].reward))
    assert found == [found[0]] * 3


@pytest.mark.slow
def test_the_rewards_are_those_of_trl_s_own_functions(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(
        "from trl.rewards import get_repetition_penalty_reward, get_soft_overlong_punishment, think_format_reward\n"
        "overlong = get_soft_overlong_punishment(20, 10)\nrepeats = get_repetition_penalty_reward(2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    rows = [{**row(n), "prompt": [{"role": "user", "content": row(n)["prompt"]}]} for n in range(40)]
    names = ["own:think_format_reward", "own:overlong", "own:repeats"]
    found = ENVIRONMENTS.validate(
        {"kind": "dataset", "data": str(lines(tmp_path / "talks.jsonl", rows)), "reward": names, "test_size": 0.3}
    )
    environment = found.make()
    environment.reset_many(range(4))
    texts = ["<think>\n2\n</think>\n4", "4", "<think>4", "4 4 4 4"]
    ids = [list(range(25)), [1, 1, 1, 1], [1], []]
    steps = environment.step_many({at: Written(text, ids[at]) for at, text in enumerate(texts)})
    import own  # type: ignore[import-not-found]

    talks = [[{"role": "assistant", "content": text}] for text in texts]
    formatted, overlong, repeats = (
        own.think_format_reward(talks), own.overlong(completion_ids=ids), own.repeats(completion_ids=ids)
    )  # fmt: skip
    for at in range(4):
        assert list((steps[at].reward_parts or {}).values()) == [formatted[at], overlong[at], repeats[at]]


@pytest.mark.parametrize(
    ("reward", "code", "said"),
    [
        ("nothing", "environment_no_reward", "nothing returned None"),
        ("not_a_number", "environment_reward", "not_a_number returned the reward nan"),
        ("two", "environment_reward", "two returned 2 rewards for one completion"),
        ("words", "environment_reward", "words returned 'good' as a reward"),
        ("bare", "environment_reward", "bare returned 1.0; expected a list"),
        ("picky", "environment_ValueError", "no such answer"),
    ],
)
def test_what_is_no_reward_costs_its_own_episode(data: Path, reward: str, code: str, said: str) -> None:
    environment = config(data, ["correct", reward] if reward == "picky" else reward).make()
    environment.reset_many([0, 1])
    steps = environment.step_many({0: "raise", 1: str(environment._slots[1].task.columns["answer"])})
    assert steps[0].error == code and said in (steps[0].details or "") and steps[0].done
    assert steps[1].error == (None if reward == "picky" else code)
    with pytest.raises(RuntimeError, match="done"):
        environment.step_many({0: "again"})


def played(environment: Any, rows: list[str]) -> list[PlayedEpisode]:
    starts = environment.reset_many(range(len(rows)))
    return play_wave(
        ScriptedPolicy(lambda at, turn: (rows[at], True)), environment, slots_of(starts), method=method(),
        seed_of=lambda name: np.random.SeedSequence(list(name.encode())), sampling=SamplingConfig(max_new_tokens=64),
        weights_digest="w", stage="collect",
    )  # fmt: skip


def test_an_episode_has_the_whole_text_its_ids_and_the_named_parts(data: Path) -> None:
    found = played(config(data, ["correct", "length"]).make(), ["<think>2 and 0</think> 2", "3"])
    assert [each.turns[0].action for each in found] == ["<think>2 and 0</think> 2", "3"], "thoughts and all"
    for each in found:
        written = each.turns[0].last_token - each.turns[0].first_token
        assert each.episode.reward_names == ["correct", "length"]
        assert each.episode.reward_values[1] == -0.01 * written
        assert each.episode.reward == sum(each.episode.reward_values)


@pytest.mark.parametrize(
    ("family", "text", "code"),
    [
        ({}, "raise", "environment_ValueError"),
        ({}, "exit", "environment_SystemExit"),
        ({"step_time_limit_seconds": 0.3}, "hang", "environment_time_limit"),
        pytest.param({"isolate": True}, "die", "environment_died", marks=pytest.mark.slow),
        pytest.param(
            {"isolate": True, "step_time_limit_seconds": 5}, "hang", "environment_time_limit", marks=pytest.mark.slow
        ),
    ],
)
@pytest.mark.parametrize("reward", ["picky", "asleep"])
def test_a_function_that_breaks_costs_its_own_episode(
    data: Path, family: dict[str, Any], text: str, code: str, reward: str
) -> None:
    if reward == "asleep" and text in ("raise", "die"):
        pytest.skip("covered by the other function")
    environment = make_environment(FamilyConfig(name="walk", environment=config(data, reward), **family))
    try:
        rights = {each["prompt"]: each["answer"] for each in map(row, range(60))}
        starts = environment.reset_many(range(4))
        texts = [rights[start.observation] for start in starts]
        found = played(environment, [texts[0], text, texts[2], "wrong"])
    finally:
        environment.close()
    assert [each.episode.error for each in found] == [None, code, None, None]
    assert [each.episode.reward for each in found] == [1.0, 0.0, 1.0, 0.0]


def test_async_functions_of_a_wave_wait_side_by_side(data: Path) -> None:
    """Each returns once all sixteen have begun: one after the other, none would."""
    rewarded.ARRIVED["count"] = 0
    environment = config(data, ["together", "eventually"]).make()
    assert environment.steps_apart
    found = played(environment, ["7"] * 16)
    assert [each.episode.reward for each in found] == [1.25] * 16


def test_the_functions_of_several_turns_on_the_page_fit_together(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "dataset.md").read_text(encoding="utf-8")
    (module,) = re.findall(r'^```python title="hints.py"\n(.*?)^```', page, re.MULTILINE | re.DOTALL)
    (tmp_path / "hints_of_the_page.py").write_text(module, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    named = {each: f"hints_of_the_page:{each}" for each in re.findall(r"hints:(\w+)", page)}
    functions = {"reward": named["right_at_last"], "answer": named["answer"]}
    found = ENVIRONMENTS.validate({"kind": "dataset", "data": str(data), **functions, "max_turns": 3})
    environment = found.make()
    environment.reset_many([0, 1])
    right = environment._slots[0].task.columns["answer"]
    assert not any(step.done for step in environment.step_many({0: "?", 1: "?"}).values())
    first = environment.step_many({0: right, 1: "?"})
    last = environment.step_many({1: "?"})[1]
    assert (first[0].reward, first[0].done, first[1].done) == (1.0, True, False)
    assert (last.reward, last.done, last.error) == (0.0, True, None)


def test_a_function_may_answer_and_is_scored_once_at_the_end(data: Path) -> None:
    found = config(data, "talk", answer=f"{HERE}:reply", max_turns=3)
    environment = found.make()
    environment.reset_many([0, 1])
    right = str(environment._slots[0].task.columns["answer"])
    first = environment.step_many({0: "0", 1: "0"})
    assert first[0].observation == "No, that is not it, try 2." and not first[0].done and first[0].reward == 0
    second = environment.step_many({0: right, 1: "1"})
    assert second[0].done and second[0].success and second[0].reward == 2.0, "turns of the actor"
    assert not second[1].done
    third = environment.step_many({1: "2"})[1]
    assert third.done and not third.success and third.reward == 0.0


@pytest.mark.parametrize(
    ("change", "found", "where"),
    [
        ({"prompt": "question"}, "a row has no column 'question'", "line 1"),
        ({"reward": [f"{HERE}:missing"]}, "cannot be imported: AttributeError", "environment.reward"),
        ({"reward": ["no_such_module_x:f"]}, "No module named 'no_such_module_x'", "environment.reward"),
        ({"reward": [f"{HERE}:lacking"]}, "asks for 'solution'", "environment.reward"),
        ({"reward": [f"{HERE}:trained"]}, "how far training is", "environment.reward"),
        ({"reward": [f"{HERE}:ARRIVED"]}, "is {'count'", "environment.reward"),
        ({"split": "train"}, "is one file", "environment.split"),
        ({"data": "nowhere.jsonl"}, "there is no file 'nowhere.jsonl'", "environment.data"),
        ({"data": "nobody/nothing"}, "cannot be got", "environment.data"),
        ({"test_size": 1e-9}, "leave 60 to train on and 0 to evaluate on", "environment.test_size"),
    ],
)
def test_what_cannot_be_played_is_refused_before_work(
    data: Path, change: dict[str, Any], found: str, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(BadInput) as refused:
        given = {"kind": "dataset", "data": str(data), "reward": f"{HERE}:correct", **change}
        check_environment(ENVIRONMENTS.validate(given))
    error = refused.value
    assert found in error.found, error
    assert where in (error.where or "") or (where in str(error) and error.expected and error.next_step)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ([], "holds no row"),
        ([row(1), 7], "'7' is no record"),
        ([row(1), {"prompt": "", "answer": ""}], "the prompt is empty"),
        ([row(1), {"prompt": 3, "answer": ""}], "the prompt is 3"),
        ([{"prompt": [{"role": "assistant", "content": "hi"}]}], "roles of its messages are assistant"),
        ([{"prompt": [{"role": "user", "content": [{"type": "image"}]}]}], "holds image: text only"),
        ([{"prompt": [{"role": "user", "content": 3}]}], "a message holds 3"),
        ([row(1), row(2, image={"bytes": None, "path": "cat.png"})], "holds an image or a sound: text only"),
        ([row(1, images=[{"bytes": None, "path": "cat.png"}])], "holds an image or a sound: text only"),
    ],
)
def test_rows_that_cannot_be_read_are_named(tmp_path: Path, rows: list[Any], found: str) -> None:
    path = lines(tmp_path / "rows.jsonl", rows)
    with pytest.raises(BadInput) as refused:
        config(path).make()
    assert found in refused.value.found and str(path) in (refused.value.where or "")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reward_weights": [1.0, 2.0]}, "2 reward_weights for 1 reward functions"),
        ({"reward": [f"{HERE}:correct"] * 2}, "names a function twice"),
        ({"reward": "no colon"}, "should match pattern"),
        ({"reward": None, "success_at": 0.5}, "a judge's is the family's reward.success_at"),
        ({"max_turns": 3}, "max_turns above 1 needs `answer`"),
        ({"answer": f"{HERE}:reply"}, "max_turns above 1 needs `answer`"),
    ],
)
def test_settings_that_do_not_fit_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said.replace("(", r"\(")):
        ENVIRONMENTS.validate({"kind": "dataset", "data": "x.jsonl", "reward": f"{HERE}:correct", **change})


def test_more_seeds_than_held_out_rows_are_refused(data: Path) -> None:
    found = config(data)
    family = FamilyConfig.model_validate(
        {"name": "walk", "environment": found, "evaluation_seeds": {"start": 1_000_000, "count": 50}}
    )
    with pytest.raises(BadInput, match=f"50 seeds of {len(found.sides().held_out)} held-out tasks"):
        check_held_out(family)


@pytest.mark.slow
def test_the_rows_pass_great_expectations(data: Path) -> None:
    check_files(config(data))


def test_a_good_completion_is_what_the_oracle_says(data: Path) -> None:
    environment = config(data, completion="answer").make()
    environment.reset_many([3])
    action = environment.oracle(0)
    assert action is not None and environment.step_many({0: action})[0].success
    assert environment.oracle(0) is None and isinstance(environment.reset_many([3])[0].actions, FreeText)
