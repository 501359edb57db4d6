"""A game whose moves are tool calls, and small models of families that call tools in forms of their own."""

from __future__ import annotations

import json
import random
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from crl.envs.game import Game, Move
from crl.protocols import Actions, Tool, ToolCalls
from tests.architectures import write_small

ENTER = Tool(
    "enter",
    "Enter a door.",
    {"type": "object", "properties": {"door": {"type": "integer"}}, "required": ["door"]},
)
PASSED = 2


class Doors(Game):
    """Two doors in a row; each is told."""

    kind: Literal["tests.doors:Doors"] = "tests.doors:Doors"

    def begin(self, random: random.Random) -> list[int]:
        return [random.randint(1, 3) for _ in range(PASSED)]

    def goal(self, state: list[int]) -> str:
        return "Enter the open doors."

    def look(self, state: list[int]) -> str:
        return f"Door {state[0]} is open." if state else "You are out."

    def actions(self, state: list[int]) -> Actions:
        return ToolCalls((ENTER,))

    def act(self, state: list[int], action: str) -> Move:
        call = json.loads(action)
        if call["name"] != ENTER.name or call["arguments"].get("door") != state[0]:
            return Move("That is shut.", legal=False)
        state.pop(0)
        return Move("You go on.", over=not state, success=not state)

    def solve(self, state: list[int]) -> str:
        """With the thought that leads to it."""
        call = {"name": ENTER.name, "arguments": {"door": state[0]}}
        return f"<think>It is {state[0]}.</think>{json.dumps(call)}"


FAMILIES = {
    "qwen3": ("qwen3", "<|im_end|>", ("<|im_start|>", "<|endoftext|>")),
    "gemma3_text": ("gemma3", "<end_of_turn>", ("<start_of_turn>",)),
    "gpt_oss": (
        "gptoss",
        "<|return|>",
        ("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|call|>"),
    ),
}
"""Template, what ends a turn, and the other control tokens, by the type of the model."""


def write_family(kind: str, folder: Path) -> Path:
    """A random model of this type with its family's chat template, as a checkpoint."""
    template, end, more = FAMILIES[kind]
    text = (files("trl") / "chat_templates" / f"{template}.jinja").read_text(encoding="utf-8")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700, min_frequency=1, show_progress=False, special_tokens=["<pad>", "<bos>", end, *more],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
    )  # fmt: skip
    said = ["Door 1 is open. Door 2 is open. Door 3 is open.", "That is shut. You go on.", "It is 1. It is 2. It is 3."]
    call = json.dumps({"name": ENTER.name, "arguments": {"door": 1}})
    tool = json.dumps({"name": ENTER.name, "description": ENTER.description, "parameters": ENTER.parameters})
    backend.train_from_iterator([text, *([call, tool, *said] * 20)], trainer)
    made: Any = PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="<pad>", bos_token="<bos>", eos_token=end,
        additional_special_tokens=list(more), clean_up_tokenization_spaces=False,
    )  # fmt: skip
    if kind == "qwen3":  # as Qwen's: no special tokens
        made.add_tokens(["<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"])
    made.chat_template = text
    made.save_pretrained(folder / "tokenizer")
    write_small(kind, folder, folder / "tokenizer", len(made), sliding_window=64)
    return folder
