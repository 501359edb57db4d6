"""In which precision this machine computes what a role asks for: bfloat16 only where there are kernels for it."""

from __future__ import annotations

from crl.config import Method, RoleConfig


def computes_bfloat16() -> bool:
    """Whether a GPU, or a CPU with kernels for it (from AVX-512 on), computes in bfloat16.

    Without them a product takes 100 times as long as in float32 (measured on AVX2: 0.25 against 89 GFLOP/s).
    """
    import torch

    return torch.cuda.is_available() or bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def computed(role: RoleConfig) -> RoleConfig:
    """The role as this machine computes it: in float32, which is at least as exact, where it cannot in bfloat16."""
    if not asks_bfloat16(role) or computes_bfloat16():
        return role
    engine = role.deepspeed.model_copy(update={"autocast": "none"})
    return role.model_copy(update={"dtype": "float32", "deepspeed": engine})


def asks_bfloat16(role: RoleConfig) -> bool:
    """Whether it samples or is trained in bfloat16."""
    return "bfloat16" in (role.dtype, role.deepspeed.autocast)


def replaced(method: Method) -> str | None:
    """What is said where roles ask for bfloat16 and are computed in float32; None where none is."""
    roles = [name for name in method.recipe.roles() if asks_bfloat16(method.role(name))]
    if not roles or computes_bfloat16():
        return None
    return f"{', '.join(roles)}: computed in float32, for this CPU has no instructions for bfloat16"
