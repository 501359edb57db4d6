"""Checkpoints whose weights are packed, as their makers write them, and the numbers that they stand for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
_BLOCK = 32


def pack_fp8(folder: Path) -> dict[str, torch.Tensor]:
    """Pack the linear layers of a checkpoint as DeepSeek-V3's: fp8 numbers, a float32 scale for each block."""
    packed, exact = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in load_file(folder / "model.safetensors").items():
        if weight.dim() != 2 or "layers" not in name or any(size % _BLOCK for size in weight.shape):
            packed[name] = exact[name] = weight.bfloat16()
            continue
        blocks = weight.view(weight.shape[0] // _BLOCK, _BLOCK, -1, _BLOCK)
        scales = blocks.abs().amax((1, 3)) / 448
        small = (blocks / scales[:, None, :, None]).to(torch.float8_e4m3fn)
        packed[name], packed[f"{name}_scale_inv"] = small.view(weight.shape), scales
        exact[name] = (small.float() * scales[:, None, :, None]).view(weight.shape)
    sizes = {"weight_block_size": [_BLOCK, _BLOCK], "activation_scheme": "dynamic"}
    _write(folder, packed, {"quant_method": "fp8", **sizes})
    return exact


def pack_mxfp4(folder: Path) -> dict[str, torch.Tensor]:
    """Pack the experts of a checkpoint as gpt-oss': two 4-bit numbers a byte, a power of two for each 32."""
    packed, exact = dict[str, torch.Tensor](), dict[str, torch.Tensor]()
    for name, weight in load_file(folder / "model.safetensors").items():
        if weight.dim() != 3 or not name.endswith("_proj"):
            packed[name] = exact[name] = weight.bfloat16()
            continue
        turned = weight.transpose(1, 2)
        blocks = turned.reshape(*turned.shape[:2], -1, _BLOCK)
        exponents = torch.floor(torch.log2(blocks.abs().amax(-1) / 6)) + 1
        scales = 2.0 ** exponents[..., None]
        codes = (blocks / scales)[..., None].sub(_FP4).abs().argmin(-1).to(torch.uint8)
        packed[f"{name}_blocks"] = codes[..., 0::2] | (codes[..., 1::2] << 4)
        packed[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
        exact[name] = (_FP4[codes.long()] * scales).reshape(turned.shape).transpose(1, 2).contiguous()
    _write(folder, packed, {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]})
    return exact


def _write(folder: Path, tensors: dict[str, torch.Tensor], quantization: dict[str, Any]) -> None:
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    changed = config | {"dtype": "bfloat16", "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(changed), encoding="utf-8")
