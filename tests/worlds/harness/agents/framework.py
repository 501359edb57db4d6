"""An agent on pydantic-ai, with a tool; it goes on with its own history."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel


def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


def main() -> None:
    if starts := os.environ.get("CRL_TEST_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{Path.cwd().name}\n")
    task = os.environ["CRL_TASK"]
    agent = Agent(OpenAIChatModel("any"), instructions="You add numbers.", tools=[add], retries=3)
    done = agent.run_sync(task)
    for _ in range(int(task.split()[0]) - 1):
        done = agent.run_sync("Again.", message_history=done.all_messages())
    Path("answer.txt").write_bytes(done.output.encode())


main()
