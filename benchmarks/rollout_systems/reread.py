"""Plain `generate` of transformers over the whole history at every turn, in the same loop."""

from __future__ import annotations

import torch
from games import MODEL, arguments, method_of, played, report, slots_of

from crl.policies import load_policy, resolve_model
from crl.protocols import Sampled, StopReason, WholeTurns


class Reread(WholeTurns):
    """Rows of ids; a turn is one call of `generate` for all rows that are due."""

    def __init__(self, policy, prompts):
        self.policy, self.ids, self.read, self.passes = policy, [list(prompt) for prompt in prompts], 0, 0

    def extend(self, pieces):
        for row, piece in pieces.items():
            self.ids[row] += piece

    def sample(self, rows, sampling, answers):
        width = max(len(self.ids[row]) for row in rows)
        gaps = {row: [0] * (width - len(self.ids[row])) for row in rows}
        device = self.policy.model.device
        ids = torch.tensor([gaps[row] + self.ids[row] for row in rows], device=device)
        mask = torch.tensor([gaps[row] + [1] * len(self.ids[row]) for row in rows], device=device)
        self.read += sum(len(self.ids[row]) for row in rows)
        with torch.inference_mode():
            out = self.policy.model.generate(
                input_ids=ids,
                attention_mask=mask,
                do_sample=True,
                temperature=sampling.temperature,
                top_k=0,
                max_new_tokens=sampling.max_new_tokens,
                eos_token_id=sorted(self.policy.end_ids),
                pad_token_id=0,
            )[:, width:]
        self.passes += out.shape[1]
        found = {}
        for row, line in zip(rows, out.tolist(), strict=True):
            end = next((place for place, index in enumerate(line) if index in self.policy.end_ids), None)
            taken = line if end is None else line[: end + 1]
            self.ids[row] += taken
            reason = StopReason.length if end is None else StopReason.end_of_turn
            found[row] = Sampled(taken, [0.0] * len(taken), reason)
            self.read += len(taken) - 1
        return found

    def drop(self, rows):
        """Nothing is held."""

    def length(self, row):
        return len(self.ids[row])


class Policy:
    """The loaded model behind sessions that read everything again."""

    def __init__(self, loaded):
        self.loaded, self.chat, self.context, self.sessions = loaded, loaded.chat, loaded.context, []

    def open(self, prompts, seeds, limit=None):
        self.sessions.append(Reread(self.loaded, prompts))
        return self.sessions[-1]


def main() -> None:
    """Load, play once for warming up, play and report."""
    groups, members, turns, dtype = arguments()
    method = method_of(turns, dtype, wave_groups=groups, group_size=members)
    loaded = load_policy(method.role("actor"), resolve_model(MODEL).path, None, threads=2)
    loaded.model.set_attn_implementation("sdpa")
    policy = Policy(loaded)
    torch.manual_seed(1)
    played(policy, method_of(3), slots_of(method, 1, 2))
    figures = played(policy, method, slots_of(method, groups, members))
    report(figures | {"read": policy.sessions[-1].read, "passes": policy.sessions[-1].passes})


if __name__ == "__main__":
    main()
