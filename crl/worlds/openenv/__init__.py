"""OpenEnv: environments that a server plays. The package `openenv` lives beside the server and is not imported."""

from crl.worlds.openenv.environment import OpenEnvConfig

__all__ = ["OpenEnvConfig"]
