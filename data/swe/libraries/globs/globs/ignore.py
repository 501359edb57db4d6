"""Lists of patterns for what is to be left out."""

from collections.abc import Iterable
from dataclasses import dataclass

from globs.braces import expand
from globs.matcher import Matcher


@dataclass(frozen=True)
class _Rule:
    matcher: Matcher
    negated: bool
    folders_only: bool


class Ignore:
    """Patterns in order. Empty ones and those that begin with `#` are skipped."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules: list[_Rule] = []
        for line in patterns:
            pattern = line.strip()
            if pattern and not pattern.startswith("#"):
                self._add(pattern)

    def ignores(self, path: str, folder: bool = False) -> bool:
        """Whether a path, or a folder that it is in, is ignored. `folder`: the path itself is a folder."""
        names = path.strip("/").split("/")
        for size in range(1, len(names) + 1):
            inside = size < len(names)
            if self._decides("/".join(names[:size]), inside or folder):
                return True
        return False

    def filter(self, paths: Iterable[str]) -> list[str]:
        """The paths of files that are not ignored, in their order."""
        return [path for path in paths if not self.ignores(path)]

    def _add(self, pattern: str) -> None:
        negated = pattern.startswith("!")
        if negated:
            pattern = pattern[1:]
        folders_only = pattern.endswith("/")
        pattern = pattern.rstrip("/")
        if "/" in pattern:
            pattern = pattern.lstrip("/")
        else:
            pattern = f"**/{pattern}"
        for each in expand(pattern):
            self._rules.append(_Rule(Matcher(each, hidden=True), negated, folders_only))

    def _decides(self, path: str, folder: bool) -> bool:
        for rule in reversed(self._rules):
            if (folder or not rule.folders_only) and rule.matcher.matches(path):
                return not rule.negated
        return False
