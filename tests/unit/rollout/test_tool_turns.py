"""A game of tool calls with a real chat format: calls are read in the model's own form, what came of them is the tool's
turn, what is no call is answered as the user."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from crl.config import PromptConfig
from crl.policies.chat import ChatFormat
from crl.rollout.play import EpisodeSlot, PlayedEpisode, play_wave
from crl.rounds.demonstrations import ScriptedRole, Watched
from tests.doors import Doors
from tests.unit.policies.families import tokenizer_of
from tests.unit.rollout.fakes import method, task
from tests.unit.rollout.test_play import SAMPLING, seed_of

PROMPT = PromptConfig(system="Act: {actions}.", first="{goal}\n{experience}{observation}\n")
RESULTS = {
    "qwen3": "<|im_end|>\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    "gptoss": '<|call|><|start|>functions.enter to=assistant<|channel|>commentary<|message|>"{}"<|end|>'
    "<|start|>assistant",
    "glm4moe": "<|observation|>\n<tool_response>\n{}\n</tool_response><|assistant|>",
    "gemma4": '<|tool_response>response:enter{{value:<|"|>{}<|"|>}}<tool_response|>',
    "llama3_1": '<|eot_id|><|start_header_id|>ipython<|end_header_id|>\n\n"{}"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "magistral": "</s>[TOOL_RESULTS]{}[/TOOL_RESULTS]",
}


def played(name: str, *said: str) -> tuple[PlayedEpisode, str]:
    """An episode in which this is said (`solve`: the right call), and all of it as text."""
    tokenizer = tokenizer_of(name)
    environment, turns = Watched(Doors(max_turns=5).make()), iter(said)

    def say(row: int) -> str:
        words = next(turns)
        return environment.oracle(row) or "" if words == "solve" else words

    made = method()
    made = made.model_copy(update={"prompts": {**made.prompts, "actor": PROMPT}})
    role = ScriptedRole(ChatFormat(tokenizer, name), 4000)
    start = Doors().make().reset_many([3])[0]
    planned = replace(task(0, 3), goal=start.goal, first_observation=start.observation)
    (episode,) = play_wave(
        role.saying(say, lambda row: True), environment, [EpisodeSlot(planned)], method=made, seed_of=seed_of,
        sampling=SAMPLING, weights_digest="w", stage="collect",
    )  # fmt: skip
    return episode, tokenizer.decode(episode.generations[0].token_ids)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in ("qwen3", "gptoss") else pytest.mark.slow) for name in RESULTS]
)
def test_what_came_of_a_call_is_the_tools_turn(name: str) -> None:
    episode, text = played(name, "solve", "north", "solve")
    assert episode.episode.success and [turn.valid for turn in episode.turns] == [True, False, True]
    first = json.loads(episode.turns[0].action or "")
    assert first == {"arguments": {"door": first["arguments"]["door"]}, "name": "enter"}
    door = json.loads(episode.turns[2].action or "")["arguments"]["door"]
    told = f"You go on.\nDoor {door} is open."
    told = json.dumps(told)[1:-1] if name in ("gptoss", "llama3_1") else told
    assert RESULTS[name].format(told) in text
    assert text.count(RESULTS[name].partition("{")[0]) == 1, "what is no call is answered as the user"
    assert "That names no possible action." in text


def test_a_chat_that_shows_no_tools_answers_calls_as_the_user() -> None:
    episode, text = played("gemma3", "solve", "solve")
    assert episode.episode.success
    assert "<end_of_turn>\n<start_of_turn>user\nYou go on.\nDoor" in text
