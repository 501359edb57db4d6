"""An agent that shells out: what it is told is counted by other programs. It knows no library."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path


def ask(messages: list[dict[str, str]]) -> str:
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": "any", "messages": messages}).encode(),
        {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"]},
    )
    with urllib.request.urlopen(request, timeout=600) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


def main() -> None:
    if starts := os.environ.get("CRL_TEST_STARTS"):
        with Path(starts).open("a") as file:
            file.write(f"{Path.cwd().name}\n")
    task = os.environ["CRL_TASK"]
    messages = [{"role": "user", "content": task}]
    for _ in range(int(task.split()[0])):
        answer = ask(messages)
        Path("answer.txt").write_bytes(answer.encode())
        counted = subprocess.run("wc -c < answer.txt", shell=True, check=True, capture_output=True, text=True).stdout
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"{counted.strip()} bytes."}]


main()
