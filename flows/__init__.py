"""Prefect flows: thin. They run the stages of a recipe in order and know no stage by name.

Importing the package turns off what Prefect would report about its use, unless the environment says otherwise, gives
its temporary server longer to start than 20 seconds (with seven busy processes per processor it took 100), and lets no
proxy come between it and this process.
"""

import os

from crl.run.guardian import past_proxies

os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "300")
past_proxies()
