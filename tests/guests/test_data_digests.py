"""Worlds that play over files of a person's say which, so that a run goes on with the same content only."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crl.config import EnvironmentConfig, FamilyConfig
from crl.errors import BadInput
from crl.run.data_files import check_data, digests_of
from crl.worlds.dataset import DatasetConfig
from crl.worlds.hotpotqa import HotpotQAConfig
from crl.worlds.swe import SweConfig
from crl.worlds.webshop import WebShopConfig
from tests.worlds.hotpotqa import hotpotqa_files
from tests.worlds.webshop import webshop_files


def dataset(folder: Path) -> EnvironmentConfig:
    (folder / "tasks.jsonl").write_text('{"prompt": "What?"}\n')
    return DatasetConfig(data=str(folder / "tasks.jsonl"), reward="m:f")


def hotpotqa(folder: Path) -> EnvironmentConfig:
    named = hotpotqa_files.write(folder / "train.json", [hotpotqa_files.record()])
    return HotpotQAConfig(questions="files", directory=str(folder), train_file=named)


def webshop(folder: Path) -> EnvironmentConfig:
    return webshop_files.write(folder, [webshop_files.record(1)])


def swe(folder: Path) -> EnvironmentConfig:
    (folder / "rows.jsonl").write_text(json.dumps({"instance_id": "a"}))
    (folder / "held.jsonl").write_text(json.dumps({"instance_id": "b"}))
    return SweConfig(rows=str(folder / "rows.jsonl"), held_out_rows=str(folder / "held.jsonl"))


@pytest.mark.parametrize("write", [dataset, hotpotqa, webshop, swe], ids=lambda write: write.__name__)
def test_every_file_has_a_digest_and_none_may_change(
    write: Callable[[Path], EnvironmentConfig], tmp_path: Path
) -> None:
    family = FamilyConfig(
        name="tasks",
        environment=write(tmp_path),
        train_seeds={"start": 0, "count": 10},  # type: ignore[arg-type]
    )
    kept = family.model_copy(update={"data_digests": digests_of(family)})
    files = sorted(path for path in tmp_path.iterdir() if path.is_file())
    assert kept.data_digests is not None and len(kept.data_digests) == len(files)
    check_data(kept)
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b"\n\n")
        with pytest.raises(BadInput, match=f"{path.name} has changed since the run was made"):
            check_data(kept)
        path.write_bytes(content)
        check_data(kept)


@pytest.mark.parametrize("config", [HotpotQAConfig(), SweConfig(), WebShopConfig()], ids=lambda config: config.kind)
def test_what_ships_needs_none(config: EnvironmentConfig) -> None:
    assert config.data_files() == {}
