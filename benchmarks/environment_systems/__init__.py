"""What `benchmarks/environments.py` plays: this project's environments, and the packages beside them.

A module of this folder has `cases() -> list[Case]` (`base.py`) and is named in `SYSTEMS` of `environments.py`. One that
is not there is left out with a word; a package that a case is held against and that is not installed is named.
"""
