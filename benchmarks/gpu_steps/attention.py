"""The attention of an update by itself, in every form that could compute it: seconds, memory, errors, equal bits.

A micro-batch is a tree: members of a group share a prompt, whose positions are computed once; each member's segment
sees the prompt and itself. Forms:

- `project`: what updates use today (`crl.learn.tree_attention`).
- `mask`: torch's fused attention, one call per segment, with a mask.
- `lower_right`: the same with a causal bias aligned at the lower right, which needs no mask in memory.
- `lower_right_gqa`: without repeating keys and values for the query heads that share them.
- `varlen`: one call of torch's `varlen_attn`: queries packed, keys by path.
- `padded`: every episode whole in one dense causal batch, as trainers do that share nothing.

Times are of forward and backward, bfloat16. Errors are the largest of the output, and the relative one of the query's
gradient, against float64 on a small tree. A form that a version of torch or this device cannot do says why.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.gpu_steps.common import arguments, device, fastest, free, reason, tell
from benchmarks.made_model import SHAPES

Tensor = torch.Tensor
Form = Callable[["Work", Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Work:
    """A tree of `members` segments behind one prompt; the first segment holds the prompt as well."""

    prompt: int
    own: int
    members: int
    heads: int
    key_value_heads: int
    width: int

    @property
    def segments(self) -> list[int]:
        """Positions of each segment."""
        return [self.prompt + self.own, *[self.own] * (self.members - 1)]

    @property
    def paths(self) -> list[list[int]]:
        """What each segment sees, itself included."""
        first = self.prompt + self.own
        begins = range(first, first + self.own * (self.members - 1), self.own)
        return [list(range(first)), *([*range(self.prompt), *range(at, at + self.own)] for at in begins)]

    def inputs(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value [1, heads, P, width]; gradients are asked for."""
        torch.manual_seed(0)
        shapes = [(1, each, sum(self.segments), self.width) for each in (self.heads, *[self.key_value_heads] * 2)]
        made = [torch.randn(shape, dtype=torch.bfloat16, device=device()).to(dtype) for shape in shapes]
        return made[0].requires_grad_(), made[1].requires_grad_(), made[2].requires_grad_()


def project(work: Work, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """By the names that updates use; where they have others by now, this form is left out."""
    from crl.learn.batches import Tree
    from crl.learn.tree_attention import Paths, tree_attention

    paths = Paths.of(Tree([], [], work.paths, work.segments), query.device)
    module = SimpleNamespace(num_key_value_groups=work.heads // work.key_value_heads, is_causal=True, training=True)
    output, _ = tree_attention(module, query, key, value, None, crl_paths=paths)
    return output[0].transpose(0, 1)[None]


def by_segment(bias: Callable[[int, int, Tensor], Any], *, repeated: bool = True) -> Form:
    """One call per segment, which is hidden what comes after it by `bias(own, seen, query)`."""

    def form(work: Work, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        if repeated:
            key, value = (each.repeat_interleave(work.heads // work.key_value_heads, dim=1) for each in (key, value))
        seen = [torch.tensor(path, device=query.device) for path in work.paths]
        outputs = [
            scaled_dot_product_attention(
                own, key.index_select(2, path), value.index_select(2, path),
                attn_mask=bias(own.shape[2], len(path), query), enable_gqa=not repeated,
            )
            for own, path in zip(query.split(work.segments, dim=2), seen, strict=True)
        ]  # fmt: skip
        return torch.cat(outputs, dim=2)

    return form


def mask(own: int, seen: int, query: Tensor) -> Tensor:
    """What is added to the scores."""
    hidden = torch.ones(own, seen, dtype=torch.bool, device=query.device).triu(seen - own + 1)
    return torch.zeros(own, seen, dtype=query.dtype, device=query.device).masked_fill(hidden, float("-inf"))


def varlen(work: Work, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """All segments in one call."""
    from torch.nn.attention.varlen import varlen_attn

    seen = torch.tensor([position for path in work.paths for position in path], device=query.device)
    lengths = [len(path) for path in work.paths]

    def ends(counts: list[int]) -> Tensor:
        return torch.tensor([0, *counts], device=query.device).cumsum(0).to(torch.int32)

    more: dict[str, Any] = {}
    known = inspect.signature(varlen_attn).parameters
    if "enable_gqa" in known:
        more["enable_gqa"] = True
    # Older versions say "causal" with a flag of their own, newer ones with a window that ends at the position.
    more |= {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    output = varlen_attn(
        query[0].transpose(0, 1), key[0].transpose(0, 1).index_select(0, seen),
        value[0].transpose(0, 1).index_select(0, seen), ends(work.segments), ends(lengths), max(work.segments),
        max(lengths), **more,
    )  # fmt: skip
    assert isinstance(output, Tensor)
    return output.transpose(0, 1)[None]


def padded(work: Work, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Every path whole; of each, the positions of its segment are kept."""
    rows = torch.tensor(work.paths, device=query.device)
    query, key, value = (each[0][:, rows].transpose(0, 1) for each in (query, key, value))
    output = scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    kept = [row[:, -own:] for row, own in zip(output, work.segments, strict=True)]
    return torch.cat(kept, dim=1)[None]


FORMS: dict[str, Form] = {
    "project": project,
    "mask": by_segment(mask),
    "lower_right": by_segment(lambda own, seen, _query: causal_lower_right(own, seen)),
    "lower_right_gqa": by_segment(lambda own, seen, _query: causal_lower_right(own, seen), repeated=False),
    "varlen": varlen,
    "padded": padded,
}


def gradients(form: Form, work: Work, inputs: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, ...]:
    """Output and gradients of one pass."""
    output = form(work, *inputs)
    return (output.detach(), *torch.autograd.grad((output * output).sum() / 2, inputs))


def measured(form: Form, work: Work, small: Work) -> dict[str, Any]:
    """Metrics of a form; whatever it cannot do here is raised."""
    exact = gradients(FORMS["mask"], small, small.inputs(torch.float64))
    own = gradients(form, small, small.inputs(torch.bfloat16))
    found: dict[str, Any] = {
        "output_error": float((own[0].double() - exact[0]).abs().max()),
        "gradient_error": float((own[1].double() - exact[1]).norm() / exact[1].norm()),
    }
    for name, wanted in (("seconds", False), ("deterministic_seconds", True)):
        torch.use_deterministic_algorithms(wanted)
        try:
            inputs = work.inputs(torch.bfloat16)
            free()
            if torch.cuda.is_available():
                torch.cuda.reset_peak_memory_stats()
            found[name] = fastest(lambda inputs=inputs: gradients(form, work, inputs))
            if torch.cuda.is_available():
                found["peak_gb"] = round(torch.cuda.max_memory_allocated() / 2**30, 3)
            one, other = (gradients(form, work, inputs) for _ in range(2))
            equal = all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
            found["equal_bits" if wanted else "equal_bits_by_chance"] = equal
        except RuntimeError as error:
            if not wanted:
                raise
            found["deterministic"] = reason(error)
        finally:
            torch.use_deterministic_algorithms(False)
    return found


def main() -> None:
    """Measure every form and tell."""
    asked = arguments(__doc__)
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # or products are refused where bits must be equal
    shape = SHAPES["1.5b" if asked.scale == "full" else "tiny"]
    heads = (shape.heads, shape.key_value_heads, shape.hidden // shape.heads)
    small = Work(48, 24, 3, *heads)
    sizes = {"8 x 1k": Work(400, 600, 8, *heads), "4 x 8k": Work(1000, 7000, 4, *heads)}
    for size, work in sizes.items() if asked.scale == "full" else {"tiny": small}.items():
        for name, form in FORMS.items():
            try:
                tell(**{f"{name}, {size}": measured(form, work, small)})
            except Exception as error:  # what one form cannot do says nothing of the others
                tell(**{f"{name}, {size}": {"skipped": reason(error)}})
            free()


if __name__ == "__main__":
    main()
