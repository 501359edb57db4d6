"""TRL's GRPOTrainer with its environment support: the loop of tool calls of `_generate`, one call per turn.

The game is given to it as an environment with one tool. The chat template (ChatML) knows no tools, so one is given that
writes a tool's answer as the user's message, with the ids of our prompts; and what the model says is taken for the
argument of a call, as a template's parser would do. An episode that is over is left with the next thing said.
"""

from __future__ import annotations

import contextlib
import tempfile
import time

import torch
import trl.trainer.grpo_trainer as module
from datasets import Dataset
from games import Asked, TurnClock, game, report
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer

from crl.policies import resolve_model
from crl.protocols import Start
from crl.rollout.actions import parse_action
from crl.rollout.prompts import following_text, opened

OVER = "The episode is over."
TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + ('user' if message['role'] == 'tool' else message['role']) "
    "+ '\\n' + message['content'] }}{% for call in message.get('tool_calls') or [] %}{{ call['function']['name'] "
    "~ call['function']['arguments'] }}{% endfor %}{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def environment_class(method):
    """The game as TRL takes environments: `reset`, and a tool. Its `clock` is begun by who generates."""

    class Room:
        turns, clock = 0, TurnClock()

        def __init__(self):
            self._game = game(method)

        def reset(self, seed=0, **_row):
            start = self._game.reset_many([seed])[0]
            self._actions, self._goal, self._done, self._taken = start.actions, start.goal, False, 0

        def move(self, action: str) -> str:
            """Make a move.

            Args:
                action: What to do.
            """
            if self._done:
                return OVER
            step = self._game.step_many({0: parse_action(action, self._actions, method.rollout.action_format)})[0]
            Room.turns += 1
            Room.clock.ended([self._taken])
            self._taken += 1
            self._actions, self._done = step.actions, step.done
            return (
                OVER
                if step.done
                else following_text(
                    method.prompts["actor"],
                    goal=self._goal,
                    observation=step.observation,
                    actions=step.actions,
                    feedback=step.feedback,
                    takes_tools=False,
                )
            )

    return Room


def main() -> None:
    """Make the trainer, let it generate once for warming up, generate and report."""
    asked = Asked.read()
    method, path = asked.method(), resolve_model(asked.model).path
    tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
    tokenizer.chat_template, tokenizer.response_template = TEMPLATE, {}
    over = tokenizer.encode(OVER)

    def parsed(tokenizer, ids, prefix=None, tools=None):
        text = tokenizer.decode(ids, skip_special_tokens=True)
        call = {"type": "function", "function": {"name": "move", "arguments": {"action": text}}}
        ended = prefix is not None and str(over)[1:-1] in str(list(prefix[-40:]))[1:-1]
        return {"role": "assistant", "content": text} | ({} if ended else {"tool_calls": [call]})

    module.parse_response = parsed
    Room = environment_class(method)
    from crl.policies.chat import ChatFormat

    chat = ChatFormat(AutoTokenizer.from_pretrained(path, trust_remote_code=False), asked.model)
    rows = []
    for slot in asked.slots():
        start = game(method).reset_many([slot.task.environment_seed])[0]
        assert isinstance(start, Start)
        messages, ids = opened(
            chat, method.prompts["actor"], start, experience=None, placement=method.rollout.placement
        )
        assert tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False) == list(ids)
        rows.append({"prompt": messages, "seed": slot.task.environment_seed})
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, asked.dtype), trust_remote_code=False),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            use_cpu=not torch.cuda.is_available(),
            bf16=False,
            gradient_checkpointing=False,
            num_generations=asked.members,
            per_device_train_batch_size=len(rows),
            max_completion_length=6,
            max_tool_calling_iterations=asked.turns,
            temperature=1.0,
            report_to=[],
        ),
        train_dataset=Dataset.from_list(rows),
        processing_class=tokenizer,
        environment_factory=Room,
    )
    read, passes = [], []

    def count(_module, _positional, named):
        read.append(named["input_ids"].numel())
        passes.append(1)

    trainer.model.register_forward_pre_hook(count, with_kwargs=True)
    # The limit of new tokens holds for a turn here; TRL's own holds for the whole episode.
    trainer.max_completion_length = 10_000
    scored = {}

    def generate(prompts):
        began, Room.turns, Room.clock = time.perf_counter(), 0, TurnClock()
        read.clear()
        passes.clear()
        out = GRPOTrainer._generate(trainer, prompts)
        scored.update(seconds=time.perf_counter() - began, turns=Room.turns, read=sum(read), passes=len(passes))
        scored.update(Room.clock.metrics())
        scored["sampled"] = sum(sum(row) for row in out[2])
        raise StopIteration  # what comes behind it is no rollout

    trainer._generate = generate
    for chosen in (rows[: asked.members], rows):
        with contextlib.suppress(StopIteration):
            trainer._generate_and_score_completions([dict(row) for row in chosen])
    report(scored)


if __name__ == "__main__":
    main()
