"""How well a cache does."""

from dataclasses import dataclass


@dataclass
class Stats:
    """Counts since the cache was made or since `reset`."""

    hits: int = 0
    misses: int = 0
    evictions: int = 0

    @property
    def hit_rate(self) -> float:
        """Hits among all look-ups, from 0 to 1; 0.0 before the first look-up."""
        asked = self.hits + self.misses
        return self.hits / asked if asked else 0.0

    def copy(self) -> "Stats":
        return Stats(self.hits, self.misses, self.evictions)

    def reset(self) -> None:
        self.hits = self.misses = self.evictions = 0
