"""The documentation as a site: every page is in its navigation, links lead somewhere, and it needs no other host."""

from __future__ import annotations

import functools
import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from crl.cli import app
from tests.processes import PATIENCE_SECONDS
from tests.recipe_runs import OTHERS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
GENERATED = "commands.md"
"""Written when the site is built, from the commands themselves."""
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def in_navigation(entries: Any) -> Iterator[str]:
    if isinstance(entries, str):
        yield entries
    for entry in entries.values() if isinstance(entries, dict) else entries if isinstance(entries, list) else ():
        yield from in_navigation(entry)


def headings(page: Path) -> set[str]:
    """Anchors of a page's headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def links() -> list[tuple[Path, str]]:
    pages = [ROOT / "README.md", *sorted(DOCS.rglob("*.md")), *sorted((ROOT / "research").glob("*.md"))]
    found = [(page, link) for page in pages for link in LINK.findall(CODE.sub("", page.read_text(encoding="utf-8")))]
    return [(page, link) for page, link in found if "://" not in link]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = [str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")]
    assert sorted(in_navigation(SITE["nav"])) == sorted([*pages, GENERATED])


def test_the_rows_of_every_recipe_are_in_the_reference() -> None:
    shown = re.findall(r"^::: (\S+)$", (DOCS / "api/records.md").read_text(encoding="utf-8"), re.MULTILINE)
    schema = (DOCS / "schema.md").read_text(encoding="utf-8")
    paths = sorted(ROOT.glob("crl/recipes/*/rows.py"))
    assert len(paths) >= len(OTHERS) and {f"crl.recipes.{path.parent.name}.rows" for path in paths} <= set(shown)
    for path in paths:
        for table in re.findall(r'table: ClassVar\[str\] = "(\w+)"', path.read_text(encoding="utf-8")):
            assert f"\n## {table}\n" in schema, table


def test_every_internal_link_leads_somewhere() -> None:
    assert len(links()) > 50
    for page, link in links():
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in headings(target), f"{page.name}: {link}"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built strictly: any warning is an error."""
    for name in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(name, reason="the extra docs is not installed: make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def address(site: Path) -> Iterator[str]:
    """The site on a port of this machine."""
    handler = functools.partial(_Quiet, directory=str(site))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.slow
def test_the_page_of_the_command_line_has_every_command_in_whole_sentences(site: Path) -> None:
    page = (site / GENERATED).with_suffix(".html").read_text(encoding="utf-8")
    text = " ".join(html.unescape(re.sub(r"<[^>]+>", "", page)).split())
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        sentences = " ".join(command.help.partition("\n\n")[0].replace("`", "").split())
        assert f"{name}: {sentences}" in text


@pytest.mark.slow
def test_the_pages_of_python_show_docstrings(site: Path) -> None:
    assert "Open a run for reading" in (site / "api/run.html").read_text(encoding="utf-8")
    for page in (site / "api").glob("*.html"):
        assert ":class:" not in page.read_text(encoding="utf-8"), page.name


@pytest.mark.slow
def test_every_page_opens_without_another_host_and_search_finds(site: Path, address: str, browser: Any) -> None:
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    asked: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    for each in sorted(site.rglob("*.html")):
        page.goto(address + str(each.relative_to(site)))
        assert page.title()
    page.goto(address + "index.html")
    page.locator("input[name=query]").fill("fencing lease damage")
    page.locator(".md-search-result__item").first.wait_for()
    assert len(asked) > 50 and not [url for url in asked if not url.startswith((address, "data:", "blob:"))]
    assert complaints == []
    page.close()
