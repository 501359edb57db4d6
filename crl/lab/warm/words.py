"""The vocabulary of a miniature: every word of its environment, its prompts and the forms it has to write."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations

from crl.config import PromptConfig
from crl.envs.realms import DEADLY, EARLY, EMPTY, GOAL, KEY, WALL, RealmsConfig, observed, vocabulary
from crl.text.outputs import placeholders

_PROMPTS = ("actor", "distill", "merge", "ask", "critic", "reflect", "predict", "vary")
_CHUNK = 5
"""Entries a merge shows: their numbers are words."""
_TURNS = 64
_FORMS = "ADD: UPDATE: RETURN KEEP MERGE DROP ASK: ACCEPT REFINE: REJECT unknown none → invalid"
_LINES = "Turn Action: End: KEEP MERGE DROP"
_REFLECTED = "The episode ended: success. failure. turn limit. context error. Reward: 0. 1."
# What the experience model reads and writes (crl/recipes/dreamgym/form.py).
_PREDICTED = (
    "\nnone Reasoning: Observation: \nObservation: \nOutcome: continues success, failure, turn_limit, reward 0 1"
)
_MET = (WALL, EMPTY, GOAL, EARLY, DEADLY)
# What the extractor's view of an episode is written with (crl/extractor/trajectory.py).
_TRAJECTORY = "Turn Action: End: (unchanged) success failure (turn limit) (context (invalid) limit)"


def words_of(environment: RealmsConfig, prompts: dict[str, PromptConfig]) -> list[str]:
    """Words in a fixed order."""
    numbers = [
        ",".join(map(str, chosen))
        for size in range(1, _CHUNK + 1)
        for chosen in combinations(range(1, _CHUNK + 1), size)
    ]
    return [
        *vocabulary(environment),
        *_prompt_words(prompts),
        KEY,
        *_FORMS.split(),
        *_TRAJECTORY.split(),
        *(f"{turn}:" for turn in range(1, _TURNS + 1)),
        *(f"{number}." for number in range(1, _CHUNK + 1)),
        *numbers,
        *(f"{listed}:" for listed in numbers),
        *(f"{tenths / 10}" for tenths in range(11)),
        # What may begin a line behind another one: turns, operations, entries, and an observation behind an answer.
        *(f"\n{word}" for word in _LINES.split()),
        *(f"\n{number}." for number in range(1, _CHUNK + 1)),
        *(f"\n{word}" for word in observed(environment.side, environment.symbols)),
        *(_REFLECTED.split() if "reflect" in prompts else ()),
        *((*_PREDICTED.split(" "), *_MET) if "predict" in prompts else ()),
    ]


def _prompt_words(prompts: dict[str, PromptConfig]) -> list[str]:
    """Words of the templates themselves, placeholders left out."""
    texts: list[str] = []
    for prompt in (prompts[name] for name in _PROMPTS if name in prompts):
        texts += [prompt.system, prompt.first, prompt.following, prompt.experience]
    if "ask" in prompts:
        texts.append(prompts["ask"].offer)
    names = {name for text in texts for name in placeholders(text)}
    blank = re.compile("|".join(re.escape("{" + name + "}") for name in sorted(names)))
    return [word for text in texts for word in blank.sub(" ", text).split()]


def parts_of(words: Sequence[str]) -> dict[str, list[str]]:
    """What composed words are made of: a symbol at a cell, the agent at a cell with the key, a word on a new line."""
    known = set(words)
    found: dict[str, list[str]] = {}
    for word in words:
        plain = word.removeprefix("\n")
        if plain != word and plain in known:
            found[word] = found.get(plain, [plain])
        elif "@" in word:
            symbol, cell = word.split("@")
            found[word] = [symbol, f"p{cell}"]
        elif re.fullmatch(r"k\d+", word):
            found[word] = [f"p{word[1:]}", KEY]
    return found
