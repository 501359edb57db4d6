"""OpenEnv: environments that a server plays, over its own protocol.

`servers` starts servers, or meets one at an address, and lends sessions; `forms` says what a typed action looks like to
an actor; `environment` plays. The package `openenv` is not imported: it lives beside the server.
"""

from crl.worlds.openenv.environment import OpenEnvConfig

__all__ = ["OpenEnvConfig"]
