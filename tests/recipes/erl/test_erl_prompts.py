"""What the reflector reads, and what is taken from what it writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from crl.config import PromptConfig
from crl.protocols import Actions, FreeText, Sampled, Start, StopReason, Tool, ToolCalls
from crl.recipes.erl import attempts
from crl.recipes.erl.config import ReflectConfig
from crl.recipes.erl.prompts import parsed
from crl.rollout.prompts import opened
from crl.text.outputs import Output
from tests.recipes.erl.erl_played import experiment


def output(text: str, *, cut: bool) -> Output:
    prompt: Any = None
    return Output(prompt, Sampled([], [], StopReason.length if cut else StopReason.end_of_turn), text)


@pytest.mark.parametrize(
    ("text", "cut", "found"),
    [
        ("So: <instructions>Go left.</instructions> I hope", True, "Go left."),
        ("So: <instructions>Go left. Then g", True, "Go left. Then g"),
        ("So: <instructions>Go left.</instruct", True, "Go left."),
        ("<instructions>Go up.</instructions> No: <INSTRUCTIONS>Go left", True, "Go left"),
        ("So: <instructions>Go left. Then g", False, "no_instructions"),
        ("<instructions>Go up.</instructions> No: <instructions>Go left", False, "Go up."),
        ("So I think that", True, "no_instructions"),
        ("So: <instructions>", True, "empty_text"),
    ],
)
def test_what_the_length_limit_ends_is_kept_as_far_as_it_goes(text: str, cut: bool, found: str) -> None:
    config = ReflectConfig(form="tag", truncated="keep")
    reason_code, kept = parsed(output(text, cut=cut), config)
    assert (kept or reason_code) == found
    malformed = parsed(output(text, cut=cut), ReflectConfig(form="tag"))
    assert not cut or malformed == ("truncated", None)


class Chat:
    """A chat format, whose template may show tools."""

    def __init__(self, takes_tools: bool) -> None:
        self.takes_tools = takes_tools

    def opening(self, messages: Any, tools: Any = ()) -> list[int]:
        return []


@pytest.mark.parametrize("takes_tools", [False, True])
@pytest.mark.parametrize(
    "actions", [ToolCalls((Tool("search", "Find things.", {}),)), FreeText("write search[words]"), ("up", "down")]
)
def test_the_reflector_is_shown_the_instructions_that_the_actor_went_by(
    monkeypatch: pytest.MonkeyPatch, takes_tools: bool, actions: Actions
) -> None:
    method = experiment(method__prompts__actor__system="For {goal} you can {actions}.").method
    prompt: PromptConfig = method.prompts["actor"]
    start, chat = Start("Find it.", "a shop", actions), Chat(takes_tools)
    monkeypatch.setattr(attempts, "starts_of", lambda ctx, places: [start for _ in places])
    monkeypatch.setattr(attempts, "chat_of", lambda method, role: chat)
    again: Any = [SimpleNamespace(task=SimpleNamespace(family="lake", environment_seed=1, goal=start.goal))]
    ctx: Any = SimpleNamespace(method=method)
    messages, _ = opened(chat, prompt, start, experience=None, placement="user")  # type: ignore[arg-type]
    assert attempts.own_instructions(ctx, again) == [messages[0]["content"]]
