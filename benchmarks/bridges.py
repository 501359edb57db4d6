"""Steps and resets a second of each bridge, and the share of actions by chance that are legal.

    python benchmarks/bridges.py [KIND …]

It plays the environment of `conf/bridges/<KIND>.yaml`, 16 slots of one process, for about five seconds each. One whose
package is missing is named and left out. Of TextWorld the games that the page names have to be made first.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path

from crl.config.load import load_experiment
from crl.errors import BadInput

ROOT = Path(__file__).parents[1]
KINDS = ("gymnasium", "minigrid", "textarena", "reasoning_gym", "textworld")
SLOTS, SECONDS = 16, 5.0


def measure(kind: str) -> str:
    """One line of the table. Raises BadInput where it cannot be played here."""
    (family,) = load_experiment(ROOT / f"conf/bridges/{kind}.yaml").method.families
    environment = family.environment.make()
    draw = random.Random(0)
    steps = legal = resets = 0
    stepping = resetting = 0.0
    while stepping + resetting < SECONDS:
        began = time.perf_counter()
        starts = environment.reset_many(range(resets, resets + SLOTS))
        resetting += time.perf_counter() - began
        resets += SLOTS
        live = {slot: start.actions for slot, start in enumerate(starts)}
        while live:
            chosen = {
                slot: draw.choice(listed) if isinstance(listed, tuple) else f"[{draw.randint(1, 20)}]"
                for slot, listed in live.items()
            }
            began = time.perf_counter()
            answers = environment.step_many(chosen)
            stepping += time.perf_counter() - began
            steps += len(answers)
            legal += sum(step.legal for step in answers.values())
            live = {slot: step.actions for slot, step in answers.items() if not step.done}
    environment.close()
    return (
        f"{kind:<14} {steps / stepping:>9,.0f} steps/s {resets / resetting:>9,.0f} resets/s {legal / steps:>7.0%} valid"
    )


if __name__ == "__main__":
    for kind in sys.argv[1:] or KINDS:
        try:
            print(measure(kind), flush=True)
        except BadInput as error:
            print(f"{kind:<14} left out: {error.found}", flush=True)
