"""Whether an environment keeps its promises (`crl.protocols.Environment`): what `crl env check` looks at.

:func:`crl.envs.check.run.check` runs every check in processes of the environment's own, so that one that dies or hangs
is a finding. `walks.py` draws actions, valid and invalid, plays with them and keeps what was seen; `conduct.py` has the
checks, as they run in such a process. Nothing here writes files.
"""
