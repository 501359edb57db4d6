"""MiniHack: levels of NetHack, read as text and played by words."""

from crl.worlds.minihack.environment import MiniHackConfig

__all__ = ["MiniHackConfig"]
