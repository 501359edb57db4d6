"""An agent of a person's: it runs what the actor says as a shell command, and shows it the output, twice."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request


def answered(messages: list[dict[str, str]]) -> str:
    body = json.dumps({"model": "actor", "messages": messages}).encode()
    head = {"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"}
    request = urllib.request.Request(f"{os.environ['OPENAI_BASE_URL']}/chat/completions", body, head)
    with urllib.request.urlopen(request, timeout=3600) as response:
        return str(json.load(response)["choices"][0]["message"]["content"])


messages = [{"role": "user", "content": os.environ["CRL_TASK"]}]
for _ in range(2):
    command = answered(messages)
    done = subprocess.run(["bash", "-c", command.replace("\0", "")], capture_output=True, text=True, errors="replace")
    messages += [
        {"role": "assistant", "content": command},
        {"role": "user", "content": (done.stdout + done.stderr)[:200]},
    ]
