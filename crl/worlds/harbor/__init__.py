"""Task folders in Harbor's form, played in a sandbox of this machine."""

from crl.worlds.harbor.environment import HarborConfig

__all__ = ["HarborConfig"]
