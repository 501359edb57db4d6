"""A kept key-value cache against reading the history again at every turn, side by side on the same prompts.

    python benchmarks/rollout.py [MODEL] [ROWS] [TURNS] [REPEATS]

Both ways sample from the same policy with the same random streams: 6 new tokens per turn, observations of about 60
tokens, prompts of about 200 whose examples all rows share. Repeats alternate; printed is the ratio of each pair.
"""

from __future__ import annotations

import statistics
import sys
import time

from crl.config import RoleConfig, SamplingConfig
from crl.policies import load_policy, resolve_model

OBSERVATION = "\n".join([". . @ . .", ". . . . .", ". # . > .", ". . . . ."]) + "\n> is 1 east 2 south. Move?"


def prompts_of(policy, rows):
    """Openings that share everything but the last lines; groups of four share all."""
    examples = [{"role": "system", "content": "You walk on a map. Answer with one move."}]
    for _ in range(5):
        examples += [{"role": "user", "content": OBSERVATION}, {"role": "assistant", "content": "southeast"}]
    return [
        policy.chat.opening([*examples, {"role": "user", "content": f"Task {row // 4}\n{OBSERVATION}"}])
        for row in range(rows)
    ]


def kept(policy, prompts, turns, sampling):
    """One session over all turns."""
    rows = list(range(len(prompts)))
    session = policy.open(prompts, [row // 4 for row in rows], rows)
    for turn in range(turns):
        sampled = session.sample(rows, sampling)
        if turn + 1 < turns:
            session.extend(
                {row: policy.chat.reply(OBSERVATION, ended=sampled[row].stop_reason == "end_of_turn") for row in rows}
            )


def reread(policy, prompts, turns, sampling):
    """A new session every turn, over the whole history, nothing shared."""
    rows = list(range(len(prompts)))
    histories = [list(prompt) for prompt in prompts]
    for _ in range(turns):
        for row in rows:  # distinct first tokens keep the session from sharing a prefix
            histories[row][0] = row + 3
        sampled = policy.open(histories, rows, rows).sample(rows, sampling)
        for row in rows:
            reply = policy.chat.reply(OBSERVATION, ended=sampled[row].stop_reason == "end_of_turn")
            histories[row] += [*sampled[row].token_ids, *reply]


def main() -> None:
    """Time pairs, print ratios."""
    model = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
    rows, turns, repeats = (int(value) for value in [*sys.argv[2:5], *["16", "6", "3"][len(sys.argv[2:5]) :]])
    role = RoleConfig(model=model, dtype="bfloat16", context=2048)
    policy = load_policy(role, resolve_model(model).path, None, threads=2)
    prompts, sampling = prompts_of(policy, rows), SamplingConfig(max_new_tokens=6)
    kept(policy, prompts[:2], 1, sampling)
    ratios = []
    for _ in range(repeats):
        seconds = []
        for way in (kept, reread):
            started = time.perf_counter()
            way(policy, prompts, turns, sampling)
            seconds.append(time.perf_counter() - started)
        ratios.append(seconds[1] / seconds[0])
        print(f"kept {rows * turns / seconds[0]:.1f} turns/s, read again {rows * turns / seconds[1]:.1f} turns/s")
    print(f"ratio: median {statistics.median(ratios):.1f}, from {min(ratios):.1f} to {max(ratios):.1f}")


if __name__ == "__main__":
    main()
