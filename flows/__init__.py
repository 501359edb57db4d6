"""Prefect flows: thin. They run the stages of a recipe in order and know no stage by name.

Importing the package turns off what Prefect would report about its use, unless the environment says otherwise, and
gives its temporary server longer to start than 20 seconds: with seven busy processes per processor it took 100.
"""

import os

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
