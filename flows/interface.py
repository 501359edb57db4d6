"""The pages that the Prefect server shows, without what they would tell others about their use.

Prefect's second UI asks a host of Amplitude, an analytics service, for its settings at every page load, whatever
PREFECT_SERVER_ANALYTICS_ENABLED says. It does not where it has no key for that service: the server is given a copy of
the pages in which the key is blank.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path

VERSION = "v2"
"""Path segment and folder of Prefect's second UI."""
_SERVICE = "amplitude.com"
_KEY = re.compile(r"`[0-9a-f]{32}`")
_PLACEHOLDER = "/PREFECT_UI_SERVE_BASE_REPLACE_PLACEHOLDER"
_REFERENCE = "UI_SERVE_BASE"
"""The server takes a folder as it is where this file in it names its version."""
_TEXT = (".txt", ".html", ".css", ".js", ".json")


def interface_settings(home: Path) -> dict[str, str]:
    """Environment of a server whose pages ask no other host; writes the pages below `home` once.

    Where Prefect keeps the key in another way than known here, its first UI, which asks nobody, becomes the default.
    """
    settings = {"PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false", "PREFECT_UI_SERVE_BASE": "/"}
    root = home / "interface"
    if not _write_pages(root):
        return {**settings, "PREFECT_SERVER_UI_V2_ENABLED": "false"}
    return {**settings, "PREFECT_UI_STATIC_DIRECTORY": str(root)}


def _write_pages(root: Path) -> bool:
    """Make `root/v2`, unless it is there; False where the pages would still ask."""
    import prefect

    reference = f"{VERSION}:{prefect.__version__}:/{VERSION}"
    target = root / VERSION
    if (target / _REFERENCE).is_file() and (target / _REFERENCE).read_text(encoding="utf-8") == reference:
        return True
    root.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root, prefix=".") as folder:
        made = Path(folder) / VERSION
        shutil.copytree(prefect.__ui_v2_static_path__, made)
        for path in sorted(made.rglob("*")):
            if path.suffix in _TEXT:
                text = path.read_text(encoding="utf-8").replace(_PLACEHOLDER, f"/{VERSION}")
                if _SERVICE in text:
                    text, found = _KEY.subn("``", text)
                    if not found:
                        return False
                path.write_text(text, encoding="utf-8")
        (made / _REFERENCE).write_text(reference, encoding="utf-8")
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    return True
