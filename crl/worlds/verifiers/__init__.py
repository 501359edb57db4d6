"""Environments of the library verifiers, as programs that run in its own interpreter."""

from crl.worlds.verifiers.environment import VerifiersConfig

__all__ = ["VerifiersConfig"]
