"""A policy that answers with given texts, and rows to distill: what the tests of this folder share."""

import dataclasses

import numpy as np
import pytest

from crl.config import Method
from crl.protocols import Sampled, StopReason, WholeTurns
from crl.records import BankEntry, Episode, Turn


class ScriptedChat:
    """One token a character of a prompt; a sampled id stands for a whole answer."""

    opens_thought = False

    def __init__(self):
        self.answers: list[str] = []

    def opening(self, messages):
        return [ord(character) % 251 for message in messages for character in message["content"]]

    def reply(self, text, *, ended):
        raise AssertionError("the extractor answers once")

    def decode(self, token_ids):
        return "".join(self.answers[number] for number in token_ids)


class ScriptedSession(WholeTurns):
    def __init__(self, policy, prompts, seeds):
        self.streams = [np.random.default_rng(seed) for seed in seeds]
        self.policy, self.prompts, self.dropped = policy, prompts, []

    def sample(self, rows, sampling, answers=None):
        found = {}
        for row in rows:
            text, stop = self.policy.answer(self.prompts[row], self.streams[row])
            self.policy.chat.answers.append(text)
            token = len(self.policy.chat.answers) - 1
            found[row] = Sampled([token], [-float(self.streams[row].random())], stop)
        return found

    def drop(self, rows):
        self.dropped += rows


class ScriptedPolicy:
    """`answer(prompt ids, generator)` gives the next answer: a text, or (text, stop reason)."""

    def __init__(self, answer, context=100_000):
        self.chat, self.context, self.sessions, self._answer = ScriptedChat(), context, [], answer

    def answer(self, prompt, generator):
        given = self._answer(prompt, generator)
        return given if isinstance(given, tuple) else (given, StopReason.end_of_turn)

    def open(self, prompts, seeds, limit=None):
        assert len(prompts) == len(seeds)
        self.sessions.append(ScriptedSession(self, prompts, seeds))
        self.sessions[-1].limit = limit
        return self.sessions[-1]


def make_method(form="lines", chunk=3, context=100_000, merge=None, **distill):
    return Method.model_validate(
        {
            "families": [{"name": "room", "environment": {"kind": "frozenlake"}}],
            "roles": {"actor": {}, "extractor": {"context": context, "sampling": {"max_new_tokens": 10}}},
            "recipe": {
                "kind": "complementary",
                "distill": {"format": form, "max_characters": 60} | distill,
                "merge": {"chunk": chunk, **(merge or {})},
            },
            "prompts": {
                "actor": {"system": "s", "first": "{observation}"},
                "distill": {
                    "system": "Distil.",
                    "examples": [{"user": "an example {goal}", "assistant": "RETURN"}],
                    "first": "{goal}|{experience}|{outcome}|{trajectory}",
                },
                "merge": {"system": "Merge.", "first": "{family}:\n{entries}"},
            },
        }
    )


def distilling(method):
    """What `distill_wave` takes of a method."""
    return {
        "role": method.role("extractor"),
        "prompt": method.prompts["distill"],
        "config": method.recipe.distill,
    }


def merging(method):
    """What `run_merge` takes of a method."""
    return {
        "role": method.role("extractor"),
        "prompt": method.prompts["merge"],
        "config": method.recipe.merge,
        "output_format": method.recipe.distill,
    }


def make_episode(number, *, guide=None, family="room", success=True, error=None, goal="reach the stairs"):
    return Episode(
        episode_id=f"r1-{family}-g{number}-m0",
        round=1,
        family=family,
        group=number,
        member=0,
        environment_seed=number,
        guided=guide is not None,
        entry_ids=[] if guide is None else [guide],
        content_digests=[] if guide is None else ["digest"],
        experiences=[] if guide is None else [f"text of {guide}"],
        goal=goal,
        success=success,
        reward=float(success),
        turns=2,
        invalid_actions=0,
        tokens_read=4,
        tokens_sampled=2,
        stop_reason="error" if error else "success" if success else "turn_limit",
        last_observation=None if error else "the end",
        error=error,
        generation_ids=[f"g-{number}"],
    )


def make_turn(episode, number, observation="a wall", output="north"):
    return Turn(
        episode_id=episode.episode_id,
        turn=number,
        observation=observation,
        output=output,
        action=output,
        valid=True,
        feedback=None,
        generation_id="g",
        first_token=0,
        last_token=1,
        stop_reason="end_of_turn",
    )


def make_entry(name, order, digest, family="room"):
    return BankEntry(
        entry_id=name,
        family=family,
        content_digest=digest,
        segment="bank/segments/s.parquet",
        embedding_file="bank/embeddings/e.parquet",
        version=1,
        created_round=0,
        updated_round=0,
        order=order,
        operation_id=f"o-{name}",
        distillation_id=f"d-{name}",
        generation_id=f"g-{name}",
        episode_ids=[f"e-{name}"],
        parents=[],
        embedder_cut=False,
    )


def placed(entries):
    """Entries as they are once their texts are in files."""
    return [dataclasses.replace(entry, segment="s.parquet", embedding_file="e.parquet") for entry in entries]


def seed_of(name):
    return np.random.SeedSequence(list(name.encode()))


def applied(consolidation):
    """What a merge does to the bank step by step: ids of the operations that were not rejected."""

    def apply(operations):
        return {event.operation_id for event in consolidation.apply(operations) if event.kind != "rejected"}

    return apply


class Kit:
    """The makers above, for tests."""

    policy = staticmethod(ScriptedPolicy)
    method = staticmethod(make_method)
    distilling = staticmethod(distilling)
    merging = staticmethod(merging)
    episode = staticmethod(make_episode)
    turn = staticmethod(make_turn)
    entry = staticmethod(make_entry)
    placed = staticmethod(placed)
    seed_of = staticmethod(seed_of)
    applied = staticmethod(applied)


@pytest.fixture(scope="session")
def kit():
    return Kit
