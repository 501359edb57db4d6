"""Waves of programs that run themselves: rows, sequences, streams, limits, ends, and what an earlier attempt kept."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from crl.checks import check_tables
from crl.config import RoleConfig, SamplingConfig
from crl.policies.chat import ChatFormat
from crl.protocols import Message
from crl.records import Episode, Generation, Turn, table_of
from crl.rollout.live import Guide
from crl.rollout.play import EpisodeSlot, PlayedEpisode, stripped_contexts
from crl.rollout.programs import play_programs
from crl.run.journal import JsonLines
from tests.unit.policies.families import tokenizer_of
from tests.unit.rollout.fakes import method, task
from tests.unit.rollout.program_fakes import TALK, Programs, ReadingPolicy, task_of
from tests.unit.rollout.test_play import seed_of

SAMPLING = SamplingConfig(max_new_tokens=200)
TOOL = '{"type": "function", "function": {"name": "add", "description": "Add.", "parameters": {"type": "object"}}}'
ADD = '{"arguments": {"a": 1, "b": 2}, "name": "add"}'


@cache
def chat(name: str = "qwen2_5") -> ChatFormat:
    return ChatFormat(tokenizer_of(name), name)


def policy(says: Any = lambda text: f"I read {len(text)} characters.", **options: Any) -> ReadingPolicy:
    return ReadingPolicy(chat(), says, **options)


def slots(*seeds: int, experience: str | None = None) -> list[EpisodeSlot]:
    guides = () if experience is None else (Guide("e1", "d" * 64, experience),)
    planned = [replace(task(at, seed), goal=task_of(seed), first_observation="") for at, seed in enumerate(seeds)]
    return [EpisodeSlot(each, guides) for each in planned]


def play(
    folder: Path, policy: ReadingPolicy, environment: Programs, played: Sequence[EpisodeSlot], **options: Any
) -> list[PlayedEpisode]:
    found = play_programs(
        policy, environment, played, seed_of=seed_of, sampling=SAMPLING, weights_digest="0" * 64, stage="collect",
        folder=folder / "programs", **{"method": method(), **options},
    )  # fmt: skip
    assert not (folder / "programs").exists(), "their folders are gone"
    assert not running(), "no program, and nothing that one started, is left"
    tables = {
        Episode: table_of(Episode, [each.episode for each in found]),
        Turn: table_of(Turn, [turn for each in found for turn in each.turns]),
        Generation: table_of(Generation, [record for each in found for record in each.generations]),
    }
    check_tables(tables, where="here")
    return found


def running(tasks: str = f" {os.getpid()}") -> list[psutil.Process]:
    """Programs that run, and what they started, whose tasks hold this: others may be tested beside."""
    processes = list(psutil.process_iter(["environ"]))
    return [each for each in processes if tasks in (each.info["environ"] or {}).get("CRL_TASK", "")]


def test_each_call_is_a_turn_and_a_conversation_that_goes_on_is_one_sequence(tmp_path: Path) -> None:
    made = policy()
    first, second = play(tmp_path, made, Programs(TALK), slots(2, 3))
    assert [len(batch) for batch in made.batches] == [2, 2, 1], "in step: all that run are sampled side by side"
    assert first.episode.success and (first.episode.turns, second.episode.turns) == (2, 3)
    (record,) = second.generations
    sampled = [ids for batch in made.batches for _, prompt, ids in batch if prompt == record.token_ids[: len(prompt)]]
    assert len(sampled) == 3
    for turn, ids in zip(second.turns, sampled, strict=True):
        assert record.token_ids[turn.first_token : turn.last_token] == ids
        assert all(record.loss_mask[turn.first_token : turn.last_token])
    assert sum(record.loss_mask) == sum(map(len, sampled))
    assert second.turns[0].observation == f"[system]\nBe short.\n\n[user]\n{task_of(3)}"
    assert second.turns[1].observation == "[user]\nGo on 0." and second.turns[1].action == second.turns[1].output
    assert (second.episode.goal, second.episode.last_observation) == (task_of(3), "Reward: 1")
    text = chat()._tokenizer.decode(record.token_ids)
    assert text.count("<|im_start|>assistant") == 3 and text.startswith("<|im_start|>system\nBe short.<|im_end|>")


AGENT = f"""
messages = [user(task)]
answer = ask(messages, tools=[{TOOL}])
(call,) = answer["tool_calls"]
given = json.loads(call["function"]["arguments"])
call["function"]["arguments"] = json.dumps(given, indent=3)  # written anew
answer.pop("reasoning_content", None)
messages += [answer, {{"role": "tool", "tool_call_id": call["id"], "content": str(given["a"] + given["b"])}}]
open("sum.txt", "w").write(ask(messages, tools=[{TOOL}])["content"])
"""


def test_a_tool_call_is_the_action_and_its_result_the_tool_s_turn(tmp_path: Path) -> None:
    made = policy(lambda text: "It is 3." if "<tool_response>\n3\n" in text else ADD)

    def reward(messages: list[Any], folder: Path, exit_code: int) -> float:
        assert [message["role"] for message in messages] == ["user", "assistant", "tool", "assistant"]
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"] and exit_code == 0
        return float((folder / "sum.txt").read_text() == messages[-1]["content"] == "It is 3.")

    (found,) = play(tmp_path, made, Programs(AGENT, reward=reward), slots(1))
    assert found.episode.success and len(found.generations) == 1
    assert json.loads(found.turns[0].action or "") == [json.loads(ADD)]
    assert found.turns[1].observation == "[tool add]\n3"


@pytest.mark.slow
def test_a_history_that_the_program_changes_begins_a_sequence(tmp_path: Path) -> None:
    code = """
messages = [system("Be short."), user(task)]
one = ask(messages)
longer = [*messages, one, user("And?")]
two = ask(longer)
again = ask([*messages, one, user("Or?")])             # goes on from the first answer
ask([*longer, {**two, "content": "No."}, user("So?")])  # says that it was another answer
ask([user("Sum up.")])                                  # a conversation of its own
ask([*longer, two, user("Last.")])                      # the first one, still
"""
    made = policy()
    (found,) = play(tmp_path, made, Programs(code), slots(1))
    names = [record.generation_id for record in found.generations]
    assert [names.index(turn.generation_id) for turn in found.turns] == [0, 0, 1, 2, 3, 0]
    main, branch, changed, alone = found.generations
    first = found.turns[0]
    assert branch.token_ids[: first.last_token] == main.token_ids[: first.last_token], "copied, not encoded again"
    assert not any(branch.loss_mask[: first.last_token]) and sum(branch.loss_mask) > 0
    assert "No." in chat()._tokenizer.decode(changed.token_ids) and len(alone.token_ids) < len(main.token_ids)
    assert found.episode.tokens_read == sum(record.loss_mask.count(0) for record in found.generations)


@pytest.mark.slow
def test_thoughts_stay_or_go_as_the_actor_s_history_says(tmp_path: Path) -> None:
    thinks = chat("qwen3")
    played = {}
    for history in ("append", "strip_thoughts"):
        roles = {"actor": RoleConfig(history=history), "extractor": RoleConfig()}
        made = ReadingPolicy(thinks, lambda text: "<think>\nI count.\n</think>\n\nThree.")
        (played[history],) = play(
            tmp_path, made, Programs(TALK), slots(3), method=method().model_copy(update={"roles": roles})
        )
    (whole,), stripped = (played[history].generations for history in ("append", "strip_thoughts"))
    assert sum(whole.loss_mask) == sum(sum(record.loss_mask) for record in stripped) and len(stripped) == 3
    texts = [thinks._tokenizer.decode(record.token_ids) for record in stripped]
    assert [text.count("I count.") for text in texts] == [1, 1, 1]
    messages = [Message("system", "Be short."), Message("user", task_of(3))]
    for at, record in enumerate(stripped):
        prompt = record.token_ids[: record.loss_mask.index(1)]
        assert prompt == thinks.conversation(messages), "the template's own rendering"
        messages += [Message("assistant", "Three."), Message("user", f"Go on {at}.")]


@pytest.mark.slow
def test_a_stream_is_named_by_the_prompt_and_how_often_it_came(tmp_path: Path) -> None:
    code = "for _ in range(2): ask([user('The same.')])\nask([user('Other.')])"
    made = policy()
    one, other = play(tmp_path, made, Programs(code), slots(1, 1))
    drawn = [[seed for seed, *_ in batch] for batch in made.batches]
    assert len({seed for batch in drawn for seed in batch}) == 6, "episodes, repetitions and prompts differ"
    assert len(one.generations) == 3 and one.generations[0].token_ids == one.generations[1].token_ids
    assert one.generations[0].logprobs != one.generations[1].logprobs
    again = policy()
    assert play(tmp_path, again, Programs(code), slots(1, 1)) == [one, other] and again.batches == made.batches


@pytest.mark.slow
def test_guided_and_free_differ_by_the_experience_alone_and_the_program_never_knows(tmp_path: Path) -> None:
    code = TALK + "ask([user('And now without a system text.')])\nopen('seen', 'w').write(json.dumps(messages))"
    seen = []

    def reward(messages: list[Any], folder: Path, exit_code: int) -> float:
        seen.append((folder / "seen").read_text())
        return 1.0

    said = policy(lambda text: "Yes.")
    (free,) = play(tmp_path, said, Programs(code, reward=reward), slots(2))
    (guided,) = play(tmp_path, said, Programs(code, reward=reward), slots(2, experience="Mind the gap."))
    assert seen[0] == seen[1] and "gap" not in seen[1]
    assert guided.episode.guided and guided.episode.experiences == ["Mind the gap."]
    texts = [chat()._tokenizer.decode(record.token_ids) for record in guided.generations]
    assert all(text.count("Advice: Mind the gap.<|im_end|>") == 1 for text in texts)
    assert texts[0].startswith("<|im_start|>system\nBe short.\nAdvice: Mind the gap.<|im_end|>")
    assert "Mind the gap." in guided.generations[0].prompt and "gap" not in guided.turns[0].observation
    for made, record in zip(stripped_contexts(guided), free.generations, strict=True):
        assert (made.token_ids, made.loss_mask) == (record.token_ids, record.loss_mask)


@pytest.mark.slow
def test_side_models_are_answered_and_recorded_and_not_trained(tmp_path: Path) -> None:
    code = "a = ask([user('Plan.')])\nask([user('Plan.')], model='side')\nask([user('Plan.'), a, user('Do.')])"

    def reward(messages: list[Any], folder: Path, exit_code: int) -> float:
        return float(messages[-2]["content"] == "Do.")

    (found,) = play(tmp_path, policy(), Programs(code, side=["side"], reward=reward), slots(1))
    main, side = found.generations
    assert sum(side.loss_mask) == 0 and not any(side.logprobs) and sum(main.loss_mask) > 0
    assert [turn.generation_id == side.generation_id for turn in found.turns] == [False, True, False]
    assert found.episode.success and found.turns[1].output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "limits", "error"),
    [
        ("raise ValueError('broken here')", {}, "program_exit"),
        ("ask([user('x')])\nos.kill(os.getpid(), 9)", {}, "program_signal"),
        ("time.sleep(600)", {"call_seconds": 0.5}, "program_call_seconds"),
        ("ask([user('x')])\ntime.sleep(600)", {"seconds": 0.5}, "program_seconds"),
        ("while True: print('x' * 100000, flush=True)", {"call_seconds": 1.0}, "program_call_seconds"),
        ("ask([user('x')], key='crl-wrong')", {}, "program_exit"),
        ("ask([{'role': 'robot'}])", {}, "program_exit"),
        ("ask([user('x')], stop=['Observation:'])", {}, "program_exit"),
        ("while True:\n  try: ask([user('x')])\n  except SystemExit: pass", {"calls": 1}, "program_flood"),
    ],
)
def test_what_breaks_a_program_costs_its_episode_and_no_other(
    tmp_path: Path, code: str, limits: dict[str, Any], error: str
) -> None:
    environment = Programs(code, TALK, **{"call_seconds": 30.0, "calls": 3, **limits})
    # Beside a program that is ended by time there is none: on a busy machine it would be slow, too.
    broken, *others = play(tmp_path, policy(), environment, slots(1) if "seconds" in str(limits) else slots(1, 1))
    assert (broken.episode.stop_reason, broken.episode.error, broken.episode.reward) == ("error", error, 0.0)
    assert broken.details and all(each.episode.success for each in others), broken.details
    if "broken here" in code:
        assert "ValueError: broken here" in broken.details, "its standard error is kept"
    assert len(broken.details) < 9000
    assert environment.ended == [(1, 0)] * len(others)


@pytest.mark.slow
def test_the_key_of_another_episode_opens_nothing(tmp_path: Path) -> None:
    holds = "open('../mine', 'w').write(path + ' ' + os.environ['OPENAI_API_KEY'])\n" + TALK
    steals = """
while not os.path.exists("../mine") or not open("../mine").read(): time.sleep(0.05)
other, key = open("../mine").read().split()
ask([user("x")])
ask([user("x")], key=key)
"""
    own, thief = play(tmp_path, policy(), Programs(holds, steals), slots(2, 1))
    assert own.episode.success and own.episode.turns == 2
    assert thief.episode.error == "program_exit" and "401: invalid_api_key" in (thief.details or "")


def test_a_program_that_cannot_be_started_costs_its_episode(tmp_path: Path) -> None:
    environment = Programs(TALK)
    environment.program = lambda slot, folder: replace(  # type: ignore[method-assign]
        Programs.program(environment, slot, folder), command=("/nowhere/agent",)
    )
    (found,) = play(tmp_path, policy(), environment, slots(1))
    assert found.episode.error == "program_start" and "/nowhere/agent" in (found.details or "")


@pytest.mark.slow
def test_children_end_with_their_program(tmp_path: Path) -> None:
    code = """
import subprocess
sleeps = [sys.executable, "-S", "-c", "import time; time.sleep(600)"]
for more in ({}, {"start_new_session": True}, {"start_new_session": True, "env": {}}):
    subprocess.Popen([*sleeps, os.getcwd()], **more)
orphan = "import subprocess, sys; subprocess.Popen(sys.argv[1:], start_new_session=True, env={})"
subprocess.run([sys.executable, "-S", "-c", orphan, *sleeps, os.getcwd()], env={})
ask([user("x")])
os.makedirs("closed/more")
os.chmod("closed", 0)
"""
    for more, limits in (("", {}), ("time.sleep(600)", {"call_seconds": 3.0}), ("os.kill(os.getppid(), 15)", {})):
        (found,) = play(tmp_path, policy(), Programs(code + more, **limits), slots(1))
        assert found.episode.success is (more == "") and found.episode.turns == 1, found.details
        left = [each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])]
        assert not [each for each in left if each.pid != os.getpid()], "nothing of it is left, whatever it hid"


@pytest.mark.slow
def test_an_episode_without_a_call_has_its_outcome(tmp_path: Path) -> None:
    (found,) = play(tmp_path, policy(), Programs("pass", reward=lambda *_: 0.5), slots(1))
    assert (found.episode.turns, found.episode.reward, found.episode.stop_reason) == (0, 0.5, "failure")
    assert sum(found.generations[0].loss_mask) == 0


@pytest.mark.slow
def test_limits_are_said_to_the_program_and_end_its_episode(tmp_path: Path) -> None:
    (found,) = play(tmp_path, policy(), Programs(TALK, calls=2, reward=lambda *_: 0.25), slots(5))
    assert (found.episode.turns, found.episode.stop_reason, found.episode.reward) == (2, "turn_limit", 0.25)
    (found,) = play(tmp_path, policy(), Programs(TALK, tokens=20), slots(5))
    assert found.episode.stop_reason == "turn_limit" and not found.episode.success
    (found,) = play(tmp_path, policy(context=330), Programs(TALK), slots(9))
    assert found.episode.stop_reason == "context_limit" and 1 <= found.episode.turns < 9
    gives_up = "try: ask([user('x' * 9000)])\nexcept SystemExit as end: open('end', 'w').write(str(end))"
    environment = Programs(gives_up, reward=lambda _, folder, code: float("length" in (folder / "end").read_text()))
    assert play(tmp_path, policy(), environment, slots(1))[0].episode.success, "it may end well all the same"


@pytest.mark.slow
def test_what_a_reward_function_breaks_is_its_own_episode_s(tmp_path: Path) -> None:
    def reward(messages: list[Any], folder: Path, exit_code: int) -> float:
        raise KeyError("no such thing")

    (found,) = play(tmp_path, policy(), Programs(TALK, reward=reward), slots(1))
    assert found.episode.error == "environment_KeyError" and "no such thing" in (found.details or "")
    (found,) = play(tmp_path, policy(), Programs(TALK, reward=lambda *_: float("nan")), slots(1))
    assert found.episode.error == "environment_reward"


@pytest.mark.slow
def test_calls_that_are_open_at_one_time_are_answered_by_their_digests(tmp_path: Path) -> None:
    code = """
threads = [threading.Thread(target=ask, args=([user(f"Part {part}.")],)) for part in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    several: list[str] = []
    made = policy()
    (found,) = play(tmp_path, made, Programs(code), slots(1), at_once=several.append)
    assert len(found.generations) == 4 and set(several) == {"r1-walk-g0-m0"}
    assert all(len(batch) == 1 for batch in made.batches), "one after the other"
    assert not play(tmp_path, policy(), Programs(TALK), slots(2), at_once=several.append)[0].episode.error
    assert set(several) == {"r1-walk-g0-m0"}


@pytest.mark.slow
def test_behind_a_server_calls_go_as_they_come(tmp_path: Path) -> None:
    slow, made = TALK.replace("messages +=", "time.sleep(0.4); messages +="), policy(by_time=True)
    found = play(tmp_path, made, Programs(TALK, slow), slots(4, 2))
    assert [each.episode.turns for each in found] == [4, 2] and all(each.episode.success for each in found)
    assert all(len(batch) == 1 for batch in made.batches[1:])

    def breaks(text: str) -> str:
        if "Go on 0." in text:
            raise MemoryError("the server is gone")
        return "Yes."

    with pytest.raises(MemoryError, match="server is gone"):
        play(tmp_path, policy(breaks, by_time=True), Programs(TALK), slots(3, 3))
    assert not running()


@pytest.mark.slow
def test_programs_that_had_ended_are_not_started_again(tmp_path: Path) -> None:
    class Killed(BaseException):
        pass

    def dies(text: str) -> str:
        if "Go on 2." in text:
            raise Killed
        return f"I read {len(text)} characters."

    wave, file = slots(1, 2, 5, 5), JsonLines(tmp_path / "steps.jsonl")
    whole = policy()
    expected = play(tmp_path, whole, Programs(TALK), wave)
    with pytest.raises(Killed):
        play(tmp_path, policy(dies), Programs(TALK), wave, file=file)
    assert not running()
    environment, resumed = Programs(TALK), policy()
    assert play(tmp_path, resumed, environment, wave, file=file) == expected
    assert resumed.batches == whole.batches, "sampled again with the same rows side by side"
    assert sorted(environment.started) == [2, 3] and sorted(slot for slot, _ in environment.ended) == [2, 3]
    environment = Programs(TALK)
    assert play(tmp_path, policy(), environment, wave, file=file) == expected and not environment.started


@pytest.mark.slow
def test_behind_a_server_what_had_ended_is_read(tmp_path: Path) -> None:
    wave, file = slots(2, 3), JsonLines(tmp_path / "steps.jsonl")
    expected = play(tmp_path, policy(by_time=True), Programs(TALK), wave, file=file)
    other, environment = policy(lambda text: "A server need not say it again.", by_time=True), Programs(TALK)
    assert play(tmp_path, other, environment, wave, file=file) == expected
    assert not environment.started and not other.batches


@pytest.mark.slow
def test_what_a_template_makes_of_a_call_costs_that_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = policy()
    whole = made.chat.conversation

    def breaks(messages: Sequence[Message], tools: Any = ()) -> list[int]:
        if "deep" in messages[-1].content:
            raise RecursionError("too deep")
        return whole(messages, tools)

    monkeypatch.setattr(made.chat, "conversation", breaks)
    bad = "try: ask([user('deep')])\nexcept SystemExit as end: assert '400' in str(end)\nask([user(task)])"
    one, other = play(tmp_path, made, Programs(bad, TALK), slots(1, 1))
    assert one.episode.success and other.episode.success and one.episode.turns == 1


@pytest.mark.slow
def test_a_program_that_is_answered_otherwise_now_is_started_after_all(tmp_path: Path) -> None:
    wave, file = slots(2, 2), JsonLines(tmp_path / "steps.jsonl")
    play(tmp_path, policy(), Programs(TALK), wave, file=file)
    other, environment = policy(lambda text: "Something else."), Programs(TALK)
    found = play(tmp_path, other, environment, wave, file=file)
    assert sorted(environment.started) == [0, 1] and found == play(tmp_path, other, Programs(TALK), wave)
    file.path.write_text('{"episode": "r1-walk-g0-m0", "calls": 3, "end": {}}\n{"episode": ')
    environment = Programs(TALK)
    play(tmp_path, policy(), environment, wave, file=file)
    assert sorted(environment.started) == [0, 1], "a line of another version is none"


@pytest.mark.slow
def test_the_same_seeds_are_drawn_whatever_else_is_in_the_wave(tmp_path: Path) -> None:
    alone, beside = policy(), policy()
    (one,) = play(tmp_path, alone, Programs(TALK), slots(3))
    two = play(tmp_path, beside, Programs(TALK), slots(3, 1, 2))
    assert one == two[0] and np.unique([seed for batch in beside.batches for seed, *_ in batch]).size == 6


@pytest.mark.slow
@pytest.mark.parametrize("batch", [None, 5])
def test_log_probabilities_of_sixteen_at_once_are_those_of_teacher_forcing(tmp_path: Path, batch: int | None) -> None:
    """On the own sampler, with a real model: what a call read and wrote is what its row says."""
    import torch

    from crl.policies import load_policy, resolve_model

    role = RoleConfig(model="tiny", context=600, sampling=SAMPLING.model_copy(update={"max_new_tokens": 12}))
    tiny = load_policy(role, resolve_model("tiny").path, None, threads=1)
    code = TALK + "ask([*messages[:3], user('Another way?')])"
    wave = [*slots(*range(1, 9)), *slots(*range(1, 9), experience="Mind the gap.")]
    wave = [
        replace(slot, task=replace(slot.task, episode_id=f"r1-walk-g{at}-m0", group=at, member=0))
        for at, slot in enumerate(wave)
    ]
    read = 0

    def count(module: Any, args: Any, given: Any) -> None:
        nonlocal read
        read += given["input_ids"].numel()

    hook = tiny.model.register_forward_pre_hook(count, with_kwargs=True)
    made = [
        play_programs(
            tiny, Programs(code), wave, method=method(batch=batch), seed_of=seed_of, sampling=role.sampling,
            weights_digest="0" * 64, stage="collect", folder=tmp_path / "programs",
        )
        for _ in range(2)
    ]  # fmt: skip
    hook.remove()
    assert made[0] == made[1], "to the last bit"
    ids = sum(len(record.token_ids) for played in made[0] for record in played.generations)
    assert batch or read < 2 * ids, "what was read for the call before is kept"
    for played in made[0]:
        assert (
            len(played.generations) == min(2, played.episode.turns - 1)
            and played.episode.turns == int(played.episode.goal.split()[0]) + 1
        )
        for record in played.generations:
            ids = torch.tensor([record.token_ids])
            with torch.no_grad():
                expected = tiny.model(ids).logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None])[:, 0]
            mask = np.array(record.loss_mask[1:], bool)
            assert np.allclose(np.array(record.logprobs[1:])[mask], expected.numpy()[mask], atol=1e-4)
            text = tiny.tokenizer.decode(record.token_ids)
            assert ("Mind the gap." in text) is played.episode.guided is ("Mind the gap." in record.prompt)
