"""A report page in a tab of Chromium, which asks for nothing and complains about nothing."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

from tests.processes import PATIENCE_SECONDS


class Opened:
    """A page in a tab, and everything it asked for or complained about."""

    def __init__(self, page: Page, path: Path) -> None:
        self.page, self.path = page, path
        self.asked: list[str] = []
        self.complaints: list[str] = []
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(f"{message.type}: {message.text}"))
        page.add_init_script(
            "window.violations = []; addEventListener('securitypolicyviolation',"
            "(event) => window.violations.push(event.violatedDirective));"
        )
        page.goto(path.as_uri())

    def text(self, selector: str) -> str:
        """What an element holds, to the letter."""
        return str(self.page.eval_on_selector(selector, "(each) => each.textContent"))

    def texts(self, selector: str) -> list[str]:
        """The same of every element that matches."""
        found: list[str] = self.page.eval_on_selector_all(selector, "(all) => all.map((each) => each.textContent)")
        return found

    def table(self, name: str) -> list[list[str]]:
        """The rows of a table by its name, headings first."""
        found: list[list[str]] = self.page.evaluate(
            "(name) => [...document.querySelectorAll('table')].filter((each) => each.ariaLabel === name)"
            ".flatMap((each) => [...each.rows].map((row) => [...row.cells].map((cell) => cell.textContent.trim())))",
            name,
        )
        return found

    def column(self, name: str, heading: str) -> dict[str, str]:
        """One column of a chart's numbers, by round."""
        heads, *rows = self.table(name)
        return {row[0]: row[heads.index(heading)] for row in rows}

    def choose(self, label: str, value: str) -> None:
        """Set a filter of the episodes."""
        self.page.get_by_label(label, exact=True).select_option(value)

    def open(self, episode: str) -> None:
        """Click an episode of the list."""
        self.page.locator(f"#list button[data-episode='{episode}']").click()
