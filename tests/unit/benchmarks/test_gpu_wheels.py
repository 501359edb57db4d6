"""`benchmarks/gpu_wheels.py`: every wheel in a part that can be carried, downloaded or built, with pinned versions."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import pytest

from benchmarks import gpu_wheels

KIB = 1 << 10


def wheel(folder: Path, name: str, kib: int, tag: str = "py3-none-any") -> Path:
    """A wheel of about so many KiB that pip takes."""
    path = folder / f"{name}-1.0-{tag}.whl"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(f"{name}/__init__.py", "#" * (kib * KIB))  # not compressed
        file.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{name}-1.0.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        file.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes for all there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


def test_parts_keep_the_limit_and_hold_every_wheel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"one": 30, "two": 60, "three": 50, "four": 30, "five": 5, "sixth": 60}
    monkeypatch.setattr(gpu_wheels, "fetch", lambda name, folder, _python: wheel(folder, name, sizes[name]))
    most = 100 / 1024
    gpu_wheels.main(["--to", str(tmp_path / "out"), "--part-mib", str(most), "--list", *sizes])
    found = {part.name: sorted(each.name.split("-")[0] for each in part.iterdir())
             for part in sorted((tmp_path / "out").iterdir())}  # fmt: skip
    assert sorted(name for names in found.values() for name in names) == sorted(sizes)
    for part in (tmp_path / "out").iterdir():
        assert 0 < sum(each.stat().st_size for each in part.iterdir()) <= most * gpu_wheels.MIB
    assert list(found) == ["part-01", "part-02", "part-03"] and found["part-01"] == ["five", "one", "two"]


@pytest.mark.slow
def test_a_wheel_over_the_limit_and_a_folder_in_use_are_named(
    index: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wheel(index, "huge", 200)
    with pytest.raises(SystemExit, match=r"huge-1\.0-py3-none-any\.whl has .* no part of .* can hold it.*--part-mib"):
        gpu_wheels.main(["--to", str(tmp_path / "out"), "--part-mib", "0.1", "--list", "huge"])
    with pytest.raises(SystemExit):
        gpu_wheels.main(["--to", str(index), "--list", "huge"])
    assert "is not an empty folder" in capsys.readouterr().err
    with pytest.raises(SystemExit, match="lacking: no wheel, and building one failed"):
        gpu_wheels.main(["--to", str(tmp_path / "out"), "--list", "lacking"])


@pytest.mark.slow
def test_what_has_no_wheel_is_built_and_fits_every_machine(index: Path, tmp_path: Path) -> None:
    with tarfile.open(index / "made-1.0.tar.gz", "w:gz") as archive:
        for name, text in (
            ("setup.py", "from setuptools import setup; setup(name='made', version='1.0', py_modules=['made'])"),
            ("made.py", ""),
            ("PKG-INFO", "Metadata-Version: 2.1\nName: made\nVersion: 1.0\n"),
        ):
            path = tmp_path / name
            path.write_text(text)
            archive.add(path, f"made-1.0/{name}")
    wheel(index, "other", 1, "cp312-cp312-manylinux_2_28_x86_64")
    gpu_wheels.main(["--to", str(tmp_path / "out"), "--list", "made", "other"])
    names = sorted(path.name for path in (tmp_path / "out/part-01").iterdir())
    assert names == ["made-1.0-py3-none-any.whl", "other-1.0-cp312-cp312-manylinux_2_28_x86_64.whl"]


def test_versions_are_those_of_the_constraints() -> None:
    pinned = gpu_wheels.pinned(gpu_wheels.NEEDED)
    assert all("==" in each for each in pinned), pinned
    assert "deepspeed==0.19.8" in pinned and "liger-kernel==0.8.5" in pinned
    assert gpu_wheels.pinned(["PyDantic_Core", "nothing==2"])[1] == "nothing==2"
    assert gpu_wheels.pinned(["PyDantic_Core"])[0].startswith("PyDantic_Core==")
