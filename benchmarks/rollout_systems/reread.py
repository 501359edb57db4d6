"""Transformers over the whole history at every turn, in the same loop: `generate`, or its paged `generate_batch`."""

from __future__ import annotations

import torch
from games import Asked, report
from transformers import ContinuousBatchingConfig, GenerationConfig

from crl.policies import load_policy, resolve_model
from crl.protocols import Sampled, StopReason, WholeTurns

BLOCK = 256
"""Tokens of a page, the size that flash attention reads."""


class Reread(WholeTurns):
    """Rows of ids; a turn is one call of `generate` for all rows that are due."""

    def __init__(self, policy, prompts):
        self.policy, self.ids, self.read, self.passes = policy, [list(prompt) for prompt in prompts], 0, 0

    def extend(self, pieces):
        for row, piece in pieces.items():
            self.ids[row] += piece

    def sample(self, rows, sampling, answers):
        self.read += sum(len(self.ids[row]) for row in rows)
        found = {}
        for row, line in zip(rows, self.said(rows, sampling), strict=True):
            end = next((place for place, index in enumerate(line) if index in self.policy.end_ids), None)
            taken = line if end is None else line[: end + 1]
            self.ids[row] += taken
            reason = StopReason.length if end is None else StopReason.end_of_turn
            found[row] = Sampled(taken, [0.0] * len(taken), reason)
            self.read += len(taken) - 1
        return found

    def said(self, rows, sampling):
        """New tokens of each row; what follows the end of a turn does not count."""
        width = max(len(self.ids[row]) for row in rows)
        gaps = {row: [0] * (width - len(self.ids[row])) for row in rows}
        device = self.policy.model.device
        ids = torch.tensor([gaps[row] + self.ids[row] for row in rows], device=device)
        mask = torch.tensor([gaps[row] + [1] * len(self.ids[row]) for row in rows], device=device)
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
        return out.tolist()

    def drop(self, rows):
        """Nothing is held."""

    def length(self, row):
        return len(self.ids[row])


class Paged(Reread):
    """Turns of continuous batching, rows of any length side by side; one manager serves them all."""

    def said(self, rows, sampling):
        config = GenerationConfig(
            do_sample=True, temperature=sampling.temperature, top_k=0, max_new_tokens=sampling.max_new_tokens,
            eos_token_id=min(self.policy.end_ids), pad_token_id=0,
        )  # fmt: skip
        # Room for every row at its longest: by itself it would take nearly all memory, also that of a CPU.
        blocks = len(self.ids) * -(-self.policy.context // BLOCK) + 1
        together = 2048 if torch.cuda.is_available() else 512  # each is masked against all pages
        answers = self.policy.model.generate_batch(
            [self.ids[row] for row in rows],
            generation_config=config,
            continuous_batching_config=ContinuousBatchingConfig(
                block_size=BLOCK, num_blocks=blocks, max_batch_tokens=together
            ),
            persistent_manager=True,
        )
        said = [list(answer.generated_tokens) for answer in answers.values()]
        if len(said) != len(rows) or not all(said):
            raise SystemExit(f"generate_batch answered {sum(map(bool, said))} of {len(rows)} requests: see its log")
        return said


class Policy:
    """The loaded model behind sessions that read everything again."""

    def __init__(self, loaded, session):
        self.loaded, self.chat, self.context = loaded, loaded.chat, loaded.context
        self.session, self.sessions = session, []

    def open(self, prompts, seeds, limit=None):
        self.sessions.append(self.session(self.loaded, prompts))
        return self.sessions[-1]


def main(session=Reread) -> None:
    """Load, play once for warming up, play and report."""
    asked = Asked.read()
    loaded = load_policy(asked.method().role("actor"), resolve_model(asked.model).path, None, threads=2)
    loaded.model.set_attn_implementation("sdpa")  # of which `generate_batch` takes the paged form
    policy = Policy(loaded, session)
    torch.manual_seed(1)
    asked.warm_up(policy)
    metrics = asked.played(policy)
    counted = policy.sessions[-1]
    report(metrics | {"read": counted.read} | ({"passes": counted.passes} if counted.passes else {}))


if __name__ == "__main__":
    main()
