"""Reward functions written for TRL's GRPOTrainer, sound and not; the tests of the world name them as modules do."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from typing import Any

ARRIVED = {"count": 0}


def correct(completions: list[Any], answer: list[str], **kwargs: Any) -> list[float]:
    """1 for the answer of the row, as TRL's own page writes it: completions are texts, or lists of messages."""
    contents = [each[0]["content"] if isinstance(each, list) else each for each in completions]
    return [1.0 if content.strip() == str(right) else 0.0 for content, right in zip(contents, answer, strict=True)]


def length(completion_ids: list[list[int]], **kwargs: Any) -> list[float]:
    return [-0.01 * len(ids) for ids in completion_ids]


def prompted(prompts: list[str], completions: list[str], level: list[int], log_metric: Any, **kwargs: Any) -> list[Any]:
    """Has nothing to say of the first level."""
    assert "prompt" not in kwargs and kwargs["answer"] is not None
    log_metric("characters", len(completions[0]))
    log_metric("undefined", float("nan"))
    kwargs["log_extra"]("completion", completions)
    return [None if each == 1 else len(prompt) / 10 for prompt, each in zip(prompts, level, strict=True)]


def strict(completions: list[str], answer: list[str]) -> list[float]:
    return [float(len(completions[0]) - len(str(answer[0])))]


async def eventually(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [0.25]


async def together(completions: list[str], **kwargs: Any) -> list[float]:
    """Returns once sixteen of them have begun."""
    ARRIVED["count"] += 1
    while ARRIVED["count"] < 16:
        await asyncio.sleep(0.001)
    return [1.0]


def nothing(completions: list[str], **kwargs: Any) -> list[None]:
    return [None]


def not_a_number(completions: list[str], **kwargs: Any) -> list[float]:
    return [float("nan")]


def two(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0, 2.0]


def words(completions: list[str], **kwargs: Any) -> list[str]:
    return ["good"]


def bare(completions: list[str], **kwargs: Any) -> float:
    return 1.0


def picky(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    """Sound but for some completions: it raises, hangs, ends its process, or leaves it."""
    text = completions[0]
    if text == "raise":
        raise ValueError("no such answer")
    if text == "hang":
        time.sleep(600)
    if text == "exit":
        sys.exit(3)
    if text == "die":
        os._exit(4)
    return correct(completions, answer)


async def asleep(completions: list[str], answer: list[str], **kwargs: Any) -> list[float]:
    if completions[0] == "hang":
        await asyncio.sleep(600)
    if completions[0] == "exit":
        sys.exit(3)
    return correct(completions, answer)


def trained(completions: list[str], trainer_state: Any, **kwargs: Any) -> list[float]:
    return [float(trainer_state.global_step)]


def lacking(completions: list[str], solution: list[str], **kwargs: Any) -> list[float]:
    return [0.0]


def reply(messages: list[dict[str, str]], answer: list[str], **kwargs: Any) -> str | None:
    """Asks again until the answer is right."""
    return None if messages[-1]["content"] == answer[0] else f"No, that is not it, try {len(messages)}."


def talk(prompts: list[Any], completions: list[list[dict[str, str]]], answer: list[str], **kwargs: Any) -> list[float]:
    """The turns of an actor that ends with the answer, else 0."""
    said = [message["content"] for message in completions[0] if message["role"] == "assistant"]
    return [float(len(said)) if said[-1] == answer[0] else 0.0]


def greedy(prompts: list[Any], meta: list[Any], **kwargs: Any) -> list[float]:
    """Changes what it is given."""
    prompts[0].insert(0, {"role": "user", "content": "first"})
    meta[0]["right"] += 1
    return [float(meta[0]["right"])]
