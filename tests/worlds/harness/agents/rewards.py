"""What the agents of these tests are worth."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def reward(task: str, messages: list[dict[str, Any]], folder: Path, exit_code: int, answer: int) -> dict[str, float]:
    """By what an agent wrote, and by how much it said."""
    written = (folder / "answer.txt").read_bytes().decode()
    said = [message for message in messages if message["role"] == "assistant"]
    assert exit_code == 0 and written == said[-1]["content"] and "plus" in task
    return {"right": float(str(answer) in written), "long": min(len(written), 40) / 80}
