"""The precision in which this machine computes what a role asks for: bfloat16 only where there are kernels for it."""

from __future__ import annotations

from crl.config import Method, RoleConfig


def computes_bfloat16() -> bool:
    """Whether this machine computes models in bfloat16: on a GPU, or on a CPU that can."""
    import torch

    return torch.cuda.is_available() or cpu_computes_bfloat16()


def cpu_computes_bfloat16() -> bool:
    """Whether the CPU multiplies in bfloat16 (AVX-512 BF16 or AMX), whatever GPU is beside it.

    Without kernels a product takes 100 times as long as in float32 (measured on AVX2: 0.25 against 89 GFLOP/s). With
    AVX-512 alone oneDNN has kernels, which convert to float32 and back: 29 against 124 GFLOP/s for 512 rows of
    2048 × 2048, 2 to 6 times as long at SmolLM2's shapes from 16 rows on.
    """
    import torch

    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    converts = torch.cpu._is_avx512_supported() and not torch.cpu._is_avx512_bf16_supported()
    return not converts or torch.cpu._is_amx_tile_supported()


def computed(role: RoleConfig) -> RoleConfig:
    """The role as this machine computes it: in float32, which is at least as exact, where it cannot in bfloat16."""
    if not _asks_bfloat16(role) or computes_bfloat16():
        return role
    settings = role.deepspeed.model_copy(update={"autocast": "none"})
    return role.model_copy(update={"dtype": "float32" if _samples_here(role) else role.dtype, "deepspeed": settings})


def _asks_bfloat16(role: RoleConfig) -> bool:
    return role.deepspeed.autocast == "bfloat16" or (role.dtype == "bfloat16" and _samples_here(role))


def _samples_here(role: RoleConfig) -> bool:
    """Whether the project's own processes sample for it: a server computes as it was started."""
    return not (role.engine.SERVED or role.engine.REMOTE)


def replaced(method: Method) -> str | None:
    """What is said where roles ask for bfloat16 and are computed in float32; None where none is."""
    roles = [name for name in method.recipe.roles() if _asks_bfloat16(method.role(name))]
    if not roles or computes_bfloat16():
        return None
    return f"{', '.join(roles)}: computed in float32, because this CPU is too slow in bfloat16"
