"""The map: a tree of letters."""

from collections.abc import Iterator, Mapping
from typing import Any

from prefixes.near import near
from prefixes.node import ABSENT, Node


class PrefixMap:
    """Words and their values."""

    def __init__(self, words: Mapping[str, Any] | None = None) -> None:
        self._root = Node()
        for word, value in (words or {}).items():
            self[word] = value

    def __setitem__(self, word: str, value: Any) -> None:
        path = [self._root]
        for letter in word:
            path.append(path[-1].children.setdefault(letter, Node()))
        if not path[-1].is_word:
            for node in path:
                node.size += 1
        path[-1].value = value

    def __getitem__(self, word: str) -> Any:
        node = self._node(word)
        if node is None or not node.is_word:
            raise KeyError(word)
        return node.value

    def __delitem__(self, word: str) -> None:
        path = [self._root]
        for letter in word:
            child = path[-1].children.get(letter)
            if child is None:
                raise KeyError(word)
            path.append(child)
        if not path[-1].is_word:
            raise KeyError(word)
        path[-1].value = ABSENT
        for node in path:
            node.size -= 1
        for parent, letter, child in zip(path, word, path[1:], strict=False):
            if child.size == 0:
                del parent.children[letter]
                break

    def __contains__(self, word: str) -> bool:
        node = self._node(word)
        return node is not None and node.is_word

    def __len__(self) -> int:
        return self._root.size

    def __iter__(self) -> Iterator[str]:
        return (word for word, _ in self.walk())

    def get(self, word: str, default: Any = None) -> Any:
        node = self._node(word)
        return node.value if node is not None and node.is_word else default

    def walk(self, prefix: str = "") -> Iterator[tuple[str, Any]]:
        """Words that begin with a prefix, with their values, sorted."""
        start = self._node(prefix)
        if start is None:
            return
        waiting = [(prefix, start)]
        while waiting:
            word, node = waiting.pop()
            if node.is_word:
                yield word, node.value
            for letter in sorted(node.children, reverse=True):
                waiting.append((word + letter, node.children[letter]))

    def keys(self, prefix: str = "") -> list[str]:
        return [word for word, _ in self.walk(prefix)]

    def count(self, prefix: str = "") -> int:
        """How many words begin with a prefix, without looking at each of them."""
        node = self._node(prefix)
        return 0 if node is None else node.size

    def completions(self, prefix: str, most: int = 5) -> list[str]:
        """At most so many words that begin with a prefix, those with the largest values first, then by word."""
        if most < 1:
            raise ValueError("most must be at least 1")
        found = sorted(self.walk(prefix), key=lambda pair: pair[0])
        found.sort(key=lambda pair: pair[1], reverse=True)
        return [word for word, _ in found[:most]]

    def longest_prefix(self, text: str) -> str | None:
        """The longest word that a text begins with, or None."""
        node, best = self._root, "" if self._root.is_word else None
        for at, letter in enumerate(text, start=1):
            child = node.children.get(letter)
            if child is None:
                break
            node = child
            if node.is_word:
                best = text[:at]
        return best

    def unique_prefix(self, word: str) -> str:
        """The shortest prefix of a word that no other word has; the word itself if others begin with it."""
        if word not in self:
            raise KeyError(word)
        node = self._root
        for at, letter in enumerate(word):
            if node.size == 1:
                return word[:at]
            node = node.children[letter]
        return word

    def within(self, word: str, distance: int) -> list[str]:
        """Words that become `word` by at most so many changes of a letter, additions and omissions, sorted."""
        if distance < 0:
            raise ValueError("distance must not be negative")
        return sorted(near(self._root, word, distance))

    def update(self, words: Mapping[str, Any]) -> None:
        for word, value in words.items():
            self[word] = value

    def pop_prefix(self, prefix: str) -> dict[str, Any]:
        """Remove all words that begin with a prefix; what they were."""
        removed = dict(self.walk(prefix))
        for word in removed:
            del self[word]
        return removed

    @property
    def node_count(self) -> int:
        count, waiting = 0, [self._root]
        while waiting:
            node = waiting.pop()
            count += 1
            waiting += node.children.values()
        return count

    def _node(self, prefix: str) -> Node | None:
        node: Node | None = self._root
        for letter in prefix:
            if node is None:
                return None
            node = node.children.get(letter)
        return node
