"""The weights of a model on their way into a server: files of a few hundred megabytes, one at a time.

What is handed over is read from the committed checkpoint and the base, whose files are mapped, and an adapter is merged
into one tensor after another. So no model is loaded for it, nobody's trainer has to live, and beside the source there
is one file and one tensor. The server copies a file's numbers before it asks for the next.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from crl.config.models import is_adapter, pretrained
from crl.policies.language_model import additions, load_model, summed, tensors_of, untie
from crl.run.tensors import Layout, layout_bytes, layout_of, write_tensors

PIECE = 256 * 2**20
"""Bytes from which a file is full: no tensor is cut, so one with a larger tensor is as large as that."""


def pieces(
    model_path: Path,
    checkpoint: Path | None,
    folder: Path,
    *,
    dtype: torch.dtype,
    untied: bool = True,
    label: str = "",
) -> Generator[Path, None, None]:
    """The weights of a base with a checkpoint (full, or an adapter), as safetensors files in a folder, which is made.

    Each file is whole when it is yielded and removed when the next is asked for, or the iterator is closed; its
    metadata says whose weights they are (`weights`: the label). The names are those of the source's files, the numbers
    those of `load_model`: what is merged is rounded to `dtype` once, and so are matrices that are wider; nothing is
    widened. `untied`: a head that shares the tensor of the embeddings is written as a tensor of its own.

    An adapter that is not merged tensor by tensor (`language_model.additions`) has its model loaded, and written whole.
    Raises as `load_model` does.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    adapted = checkpoint is not None and is_adapter(checkpoint)
    tensors = tensors_of(model_path if checkpoint is None or adapted else checkpoint)
    added = additions(checkpoint, tensors) if checkpoint is not None and adapted else {}
    if added is None or not tensors:
        yield from _of_model(load_model(model_path, checkpoint, dtype=dtype), folder, untied=untied)
        return
    if untied and (tied := _tied(model_path)) is not None:
        head, embeddings = tied
        if head not in tensors and embeddings in tensors:
            tensors[head] = tensors[embeddings]
    layouts = {name: _layout(each, dtype, merged=name in added) for name, each in tensors.items()}
    for number, names in enumerate(_cut(layouts)):
        path = folder / f"{number:05d}.safetensors"
        try:
            write_tensors(
                path,
                {name: layouts[name] for name in names},
                lambda name: _made(tensors[name], added.get(name), layouts[name]),
                metadata={"format": "pt", "piece": str(number), "weights": label},
                hashed=False,
            )
            yield path
        finally:
            path.unlink(missing_ok=True)


def _layout(tensor: torch.Tensor, dtype: torch.dtype, *, merged: bool) -> Layout:
    """As a tensor is written."""
    kind, shape = layout_of(tensor)
    wider = tensor.is_floating_point() and tensor.dim() > 1 and tensor.element_size() > dtype.itemsize
    return (str(dtype).removeprefix("torch.") if merged or wider else kind), shape


def _made(tensor: torch.Tensor, addition: Callable[[], torch.Tensor] | None, layout: Layout) -> torch.Tensor:
    return summed(tensor, addition).to(getattr(torch, layout[0]))


def _cut(layouts: Mapping[str, Layout]) -> Iterator[list[str]]:
    """The names of each file, in their order."""
    together: list[str] = []
    size = 0
    for name, layout in layouts.items():
        if together and size + layout_bytes(layout) > PIECE:
            yield together
            together, size = [], 0
        together.append(name)
        size += layout_bytes(layout)
    if together:
        yield together


def _tied(model_path: Path) -> tuple[str, str] | None:
    """The names of a head and of the embeddings whose tensor it shares; None: it has a tensor of its own."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(pretrained(AutoConfig, model_path))
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or head.weight is not embeddings.weight:
        return None
    names = {module: name for name, module in model.named_modules()}
    return f"{names[head]}.weight", f"{names[embeddings]}.weight"


def _of_model(model: Any, folder: Path, *, untied: bool) -> Iterator[Path]:
    """The files of a model in memory; all are there from the first on."""
    if untied:
        untie(model)
    model.save_pretrained(folder, max_shard_size=PIECE)
    paths = sorted(folder.glob("*.safetensors"))
    try:
        yield from paths
    finally:
        for path in (*paths, *folder.glob("*.json")):
            path.unlink(missing_ok=True)
