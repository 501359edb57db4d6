"""Demonstrations for what the paper adds as options: asking (actor), answering (extractor), verdicts (actor as critic).

They teach form: an actor that may ask does so first and then plays by the answer; an answer repeats an
experience that fits the grid and proposes another one where it cannot be right; a verdict accepts what fits, now and
then rewrites it, and rejects what names a symbol that is not there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np

from crl.config import Method
from crl.envs.realms import RealmsEnvironment, experience_text, symbol_names
from crl.extractor.prompts import ask_messages
from crl.protocols import Advice, Chat, Inquiry
from crl.records import Generation
from crl.rounds.demonstrations import ScriptedRole, say_script
from crl.run.seeds import seed_for
from crl.text.outputs import messages_of

_REWRITES = 0.15
_SYMBOL = re.compile(r"\b[A-Z]\b")
WAVE = 500
"""Demonstrations made side by side."""
STAGE = "warm"
"""What demonstrations call their stage."""


class TruthfulAdvisor:
    """Answers with the rule of the practice realm: what asking is good for."""

    def __init__(self, environment: RealmsEnvironment, slot_of: dict[str, int]) -> None:
        self._environment, self._slot_of = environment, slot_of

    def advise(self, inquiries: Sequence[Inquiry]) -> list[Advice]:
        """One answer an inquiry."""
        layouts = [self._environment.layout(self._slot_of[inquiry.episode_id]) for inquiry in inquiries]
        return [Advice("ok", answer=experience_text(layout.key, layout.goal)) for layout in layouts]


def question_about(environment: RealmsEnvironment, slot: int) -> str:
    """What a demonstration asks: the symbols it sees."""
    layout = environment.layout(slot)
    return "ASK: " + " ".join(sorted(layout.cells))


def answer_demonstrations(chat: Chat, method: Method, count: int, seed: int, *, first_seed: int) -> list[Generation]:
    """Answers to questions, from an experience that may be wrong."""
    prompt = method.prompts["ask"]
    asked = []
    for index, (environment, slot, experience, random) in enumerate(_situations(method, count, seed, first_seed)):
        start = environment.layout(slot)
        inquiry = Inquiry(
            question_id=f"answer-{index:06d}", episode_id="", family=method.families[0].name, goal=f"r{start.realm}",
            observation=start.text(), question=question_about(environment, slot).removeprefix("ASK: "),
        )  # fmt: skip
        said = experience if fits(experience, start.cells) else experience_text(*any_two(start.cells, random))
        asked.append((inquiry.question_id, ask_messages(prompt, inquiry, experience), said))
    voice = ScriptedRole(chat, method.role("extractor").context)
    return say_script(method, voice, asked, role="extractor", kind="ask", stage=STAGE)


def verdict_demonstrations(chat: Chat, method: Method, count: int, seed: int, *, first_seed: int) -> list[Generation]:
    """Verdicts on experiences that may be wrong, at any rate of success."""
    prompt = method.prompts["critic"]
    asked = []
    for index, (environment, slot, experience, random) in enumerate(_situations(method, count, seed, first_seed)):
        start = environment.layout(slot)
        rate = "unknown" if random.random() < 0.1 else f"{random.integers(11) / 10}"
        verdict = "ACCEPT"
        if not fits(experience, start.cells):
            verdict = "REJECT"
        elif random.random() < _REWRITES:
            verdict = f"REFINE: {experience_text(*any_two(start.cells, random))}"
        values = {
            "goal": f"r{start.realm}", "observation": start.text(), "experience": experience, "success_rate": rate,
        }  # fmt: skip
        asked.append((f"verdict-{index:06d}", messages_of(prompt, values), verdict))
    voice = ScriptedRole(chat, method.role("actor").context)
    return say_script(method, voice, asked, role="actor", kind="critic", stage=STAGE)


def _situations(
    method: Method, count: int, seed: int, first_seed: int
) -> list[tuple[RealmsEnvironment, int, str, np.random.Generator]]:
    """Practice layouts with an experience: the truth, an experience of symbols on the grid, or one of any symbols."""
    found = []
    for at in range(0, count, WAVE):
        environment = RealmsEnvironment(method.families[0].environment)  # type: ignore[arg-type]
        environment.reset_many(range(first_seed + at, first_seed + min(at + WAVE, count)))
        random = np.random.default_rng(seed_for(seed, "advice", first_seed + at))
        letters = symbol_names(environment.config.symbols)
        for slot in range(min(WAVE, count - at)):
            layout, kind = environment.layout(slot), random.random()
            experience = experience_text(layout.key, layout.goal)
            if kind > 0.4:
                experience = experience_text(*any_two(layout.cells if kind < 0.7 else letters, random))
            found.append((environment, slot, experience, random))
    return found


def fits(experience: str, symbols: Iterable[str]) -> bool:
    """Whether every symbol of an experience is one of these."""
    return set(_SYMBOL.findall(experience)) <= set(symbols)


def any_two(symbols: Iterable[str], random: np.random.Generator) -> tuple[str, str]:
    """Two different symbols, in random order."""
    first, second = random.choice(sorted(symbols), size=2, replace=False)
    return str(first), str(second)
