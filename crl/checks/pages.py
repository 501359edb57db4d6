"""Data Docs: Great Expectations' own rendering of suites and validations, as pages that load nothing.

Its site builder writes pages that fetch styles, scripts and images from five hosts and do not work without. So its
renderers make the content, and a page template of ours (`templates/`) takes the place of theirs.
"""

from __future__ import annotations

import html
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import great_expectations as gx
from great_expectations.render.components import RenderedComponentContent
from great_expectations.render.renderer.page_renderer import ExpectationSuitePageRenderer, ValidationResultsPageRenderer
from great_expectations.render.view.view import DefaultJinjaPageView
from jinja2 import ChoiceLoader, PackageLoader, pass_context

from crl.text.unicode import escaped

INDEX = "index.html"


@dataclass(frozen=True)
class Page:
    """The page of one table of one stage, as the index lists it."""

    round: int
    stage: str
    table: str
    rows: int
    rules: int
    passed: bool
    committed: bool = True

    @property
    def file(self) -> str:
        """Where it is in the site: four folders deep, as its link to the suite expects."""
        return f"validations/rounds/{self.round:04d}/{self.stage}/{self.table}.html"


@dataclass(frozen=True)
class Validated:
    """A page that is to be written, and what Great Expectations found."""

    page: Page
    result: Any
    broken: Sequence[str]
    """A sentence for each expectation that failed."""


class _View(DefaultJinjaPageView):
    """Great Expectations' view of a page, with our templates before its own."""

    def __init__(self) -> None:
        super().__init__()
        self.env.loader = ChoiceLoader([PackageLoader("crl.checks"), *filter(None, [self.env.loader])])

    @pass_context
    def render_content_block(self, context: Any, content_block: Any, *place: Any, **more: Any) -> Any:
        """As theirs, which puts the values of rows into cells as if they were HTML. It escapes its own sentences."""
        return super().render_content_block(context, _as_text(content_block), *place, **more)


def write_site(
    directory: Path,
    run: str,
    validated: Sequence[Validated],
    suites: Mapping[str, Mapping[str, Any]],
    *,
    earlier: Sequence[Page] = (),
    site: Path | None = None,
) -> None:
    """Write `index.html`, a page for each validation and one for each suite into a directory that exists; pages of
    `earlier` validations are those of the old `site`."""
    view: Any = _View()
    suite_pages: Any = ExpectationSuitePageRenderer()
    for each in validated:
        document = ValidationResultsPageRenderer().render(each.result)
        title = f"round {each.page.round}, {each.page.stage}: {each.page.table}"
        content = view.render(document, title=title, run=run, home="../../../../", broken=each.broken)
        _write(directory / each.page.file, content)
    for page in earlier:
        assert site is not None
        (directory / page.file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(site / page.file, directory / page.file)
    for name, suite in suites.items():
        expectations = gx.ExpectationSuite(name=name, expectations=list(suite["expectations"]))
        document = suite_pages.render(expectations)
        content = view.render(document, title=f"suite {name}", run=run, home="../")
        _write(directory / "expectations" / f"{name}.html", content)
    counts = {name: len(suite["expectations"]) for name, suite in suites.items()}
    pages = sorted([*earlier, *(each.page for each in validated)], key=lambda page: -page.round)
    index = view.env.get_template("data_docs_index.j2").render(run=run, pages=pages, suites=counts)
    _write(directory / INDEX, index)


def _as_text(block: Any) -> Any:
    """What is shown, with everything that is no block of Great Expectations' escaped for HTML."""
    if isinstance(block, list):
        return [each if _is_block(each) else html.escape(str(each)) for each in block]
    if isinstance(block, str) or (isinstance(block, dict) and not _is_block(block)):
        return html.escape(str(block))
    return block


def _is_block(value: Any) -> bool:
    return isinstance(value, RenderedComponentContent) or (isinstance(value, dict) and "content_block_type" in value)


def _write(path: Path, content: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(escaped(content), encoding="utf-8")
