"""An agent on the plain `openai` client, with tools: it is asked for a sum as often as its task says."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from openai import OpenAI

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add two numbers.",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
                "required": ["a", "b"],
            },
        },
    }
]


def add(a: float = 0, b: float = 0) -> str:
    return str(a + b)


def main() -> None:
    if starts := os.environ.get("CRL_TEST_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{Path.cwd().name}\n")
    task = os.environ["CRL_TASK"]
    client = OpenAI()
    messages: list[Any] = [{"role": "system", "content": "You add numbers."}, {"role": "user", "content": task}]
    said = ""
    for turn in range(int(task.split()[0])):
        streamed = turn % 2 == 1
        if streamed:
            with client.chat.completions.create(model="any", messages=messages, tools=TOOLS, stream=True) as chunks:
                pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
            messages.append({"role": "assistant", "content": "".join(pieces)})
        else:
            answer = client.chat.completions.create(model="any", messages=messages, tools=TOOLS).choices[0].message
            messages.append(answer.model_dump(exclude_none=True, exclude={"reasoning_content"}))
        said = messages[-1]["content"] or ""
        for call in messages[-1].get("tool_calls", []):
            result = add(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        messages.append({"role": "user", "content": f"You said {len(said)} characters. Again."})
    Path("answer.txt").write_bytes(said.encode())


main()
