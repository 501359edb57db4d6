"""Runs whose figures are shown, as files: each is whole and small, and gives its figure again."""

from __future__ import annotations

from pathlib import Path

import pytest

from crl.serve.folder import OfFolder, is_agent
from crl.serve.held_out import evaluate_folder, stored_episodes

EXPORTS = sorted(path for path in (Path(__file__).parents[1] / "exports").glob("*") if is_agent(path))
MOST_BYTES = 10_000_000


@pytest.mark.parametrize("folder", EXPORTS, ids=lambda folder: folder.name)
def test_an_export_is_what_was_written_and_small(folder: Path) -> None:
    agent = OfFolder(folder)
    agent.check_weights()
    assert stored_episodes(agent)
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= MOST_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("folder", EXPORTS, ids=lambda folder: folder.name)
def test_an_export_gives_its_figure_again(folder: Path) -> None:
    _, compared = evaluate_folder(OfFolder(folder))
    assert compared is not None and compared.holds, "\n".join([] if compared is None else compared.lines())
