"""Files of tensors that are written one after another: the library's own bytes, and their digest."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from safetensors.torch import load_file, save, save_file  # noqa: E402

from crl.run import files  # noqa: E402
from crl.run.files import sha256_file, sha256_once  # noqa: E402
from crl.run.tensors import layout_of, write_tensors  # noqa: E402

TYPES = (
    *(torch.bool, torch.uint8, torch.int8, torch.float8_e5m2, torch.float8_e4m3fn, torch.int16, torch.uint16),
    *(torch.float16, torch.bfloat16, torch.int32, torch.uint32, torch.float32, torch.float64, torch.int64),
    torch.uint64,
)


def written(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> bytes:
    layouts = {name: layout_of(each) for name, each in tensors.items()}
    write_tensors(path, layouts, tensors.__getitem__, metadata=metadata)
    return path.read_bytes()


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_bytes_are_those_of_the_library(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    tensors = {f"{number % 3}.{kind}": torch.arange(6).view(2, 3).to(kind) for number, kind in enumerate(TYPES)}
    tensors |= {"none": torch.zeros(0), "one": torch.tensor(3.0), 'a "word" é\n': torch.ones(1)}
    tensors["large"] = torch.randn(3, 1 << 21)
    tensors["turned"] = torch.randn(700, 900).T
    whole = {name: each.contiguous() for name, each in tensors.items()}
    assert written(tmp_path / "made.safetensors", tensors, metadata) == save(whole, metadata)
    assert torch.equal(load_file(tmp_path / "made.safetensors")["turned"], tensors["turned"])


def test_what_was_written_is_not_read_to_be_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "made.safetensors"
    written(path, {"large": torch.randn(1 << 20), "small": torch.randn(3)})
    expected = sha256_file(path)
    with monkeypatch.context() as patched:
        patched.setattr(files, "sha256_file", lambda path: "read")
        assert sha256_once(path) == sha256_once(path) == expected
    with path.open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\xff")
    assert sha256_once(path) == sha256_file(path) != expected, "it was changed afterward"


def test_a_tensor_of_another_shape_than_was_said_is_refused(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="was to be"):
        write_tensors(tmp_path / "made.safetensors", {"one": ("float32", (2,))}, lambda name: torch.zeros(3))


def test_tensors_are_written_over_the_file_that_they_were_read_from(tmp_path: Path) -> None:
    """A trainer that was resumed from a checkpoint writes the next one to the same place: its state may be mapped."""
    path = tmp_path / "state.safetensors"
    first = torch.arange(600_000, dtype=torch.float32)
    save_file({"state": first}, path)
    for _ in range(2):
        read = load_file(path)
        write_tensors(path, {name: layout_of(each) for name, each in read.items()}, read.__getitem__)
    assert torch.equal(load_file(path)["state"], first)
