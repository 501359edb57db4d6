"""The pages the server is given ask no analytics service; where that cannot be had, the other pages are the default."""

from __future__ import annotations

from pathlib import Path

import prefect
import pytest

from flows import interface
from flows.interface import interface_settings


def test_the_pages_hold_no_key_and_are_written_once(tmp_path: Path) -> None:
    settings = interface_settings(tmp_path)
    pages = Path(settings["PREFECT_UI_STATIC_DIRECTORY"]) / interface.VERSION
    # The server leaves pages alone whose reference names its version.
    assert (pages / "UI_SERVE_BASE").read_text() == f"v2:{prefect.__version__}:/v2"
    scripts = [path.read_text(encoding="utf-8") for path in pages.rglob("*.js")]
    asking = [text for text in scripts if "amplitude.com" in text]
    assert asking, "Prefect's pages no longer know the service: flows/interface.py is not needed any more"
    assert not any(interface._KEY.search(text) for text in asking)
    assert "/v2/assets/" in (pages / "index.html").read_text(encoding="utf-8")

    before = (pages / "index.html").stat().st_mtime_ns
    assert interface_settings(tmp_path) == settings
    assert (pages / "index.html").stat().st_mtime_ns == before


def test_unknown_pages_are_not_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "index.js").write_text("ask('https://amplitude.com')", encoding="utf-8")
    monkeypatch.setattr(prefect, "__ui_v2_static_path__", source)
    settings = interface_settings(tmp_path / "home")
    assert settings["PREFECT_SERVER_UI_V2_ENABLED"] == "false" and "PREFECT_UI_STATIC_DIRECTORY" not in settings
    assert list((tmp_path / "home" / "interface").iterdir()) == []
