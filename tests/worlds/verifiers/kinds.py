"""Environments of verifiers' own classes, as a person writes them; played in verifiers' interpreter."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import verifiers as vf  # type: ignore[import-not-found]
from datasets import Dataset


def rows(count: int, first: int = 0) -> Any:
    return Dataset.from_list(
        [{"question": f"What is {n} plus {n % 7}?", "answer": str(n + n % 7)} for n in range(first, first + count)]
    )


def text_of(completion: Any) -> str:
    return "".join(str(message.content or "") for message in completion if message.role == "assistant")


async def right(completion: Any, answer: str) -> float:
    return float(answer in text_of(completion))


async def length(completion: Any) -> float:
    return min(len(text_of(completion)), 80) / 80


class Again(vf.MultiTurnEnv):  # type: ignore[misc]
    """Asks once more, with what was said so far counted."""

    async def env_response(self, messages: Any, state: Any, **kwargs: Any) -> Any:
        turns = len(state["trajectory"])
        if "stop" in str(messages[-1].content):
            state["final_env_response"] = [{"role": "user", "content": "You stopped."}]
        return [{"role": "user", "content": f"You said {len(text_of(messages))} characters. Turn {turns}: again."}]


async def add(a: float, b: float) -> str:
    """Add two numbers."""
    return str(a + b)


async def remember(number: int, memory: list[int]) -> str:
    """Remember a number."""
    memory.append(number)
    return f"You remember {memory}."


class Memory(vf.StatefulToolEnv):  # type: ignore[misc]
    """Its tool writes into a state that the model does not see."""

    async def setup_state(self, state: Any, **kwargs: Any) -> Any:
        state["memory"] = []
        return state

    def update_tool_args(self, tool_name: str, tool_args: Any, messages: Any, state: Any, **kwargs: Any) -> Any:
        return {**tool_args, "memory": state["memory"]}


async def remembered(state: Any) -> float:
    return float(len(state["memory"]))


def load_environment(kind: str, count: int = 120) -> Any:
    if starts := os.environ.get("CRL_TEST_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{Path.cwd().name}\n")
    rubric = vf.Rubric(funcs=[right, length], weights=[1.0, 0.25])
    both = {"dataset": rows(count), "eval_dataset": rows(20, 1000), "rubric": rubric}
    if kind == "single":
        return vf.SingleTurnEnv(system_prompt="You add numbers.", **both)
    if kind == "multi":
        return Again(max_turns=3, system_prompt="You add numbers.", **both)
    if kind == "tool":
        return vf.ToolEnv(tools=[add], max_turns=3, **both)
    if kind == "stateful":
        rubric.add_reward_func(remembered, weight=0.5)
        environment = Memory(tools=[], max_turns=3, **both)
        environment.add_tool(remember, args_to_skip=["memory"])
        return environment
    if kind == "gym":
        from verifiers.envs.integrations.reasoninggym_env import ReasoningGymEnv  # type: ignore[import-not-found]

        return ReasoningGymEnv(gym="leg_counting", num_train_examples=count, num_eval_examples=20, seed=7)
    if kind == "one_split":
        return vf.SingleTurnEnv(dataset=rows(count), rubric=rubric)
    if kind == "groups":

        async def best(completions: Any) -> list[float]:
            return [1.0 for _ in completions]

        return vf.SingleTurnEnv(dataset=rows(count), rubric=vf.Rubric(funcs=[best]))
    raise ValueError(f"there is no {kind}")
