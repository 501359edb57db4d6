"""What `benchmarks/environments.py` plays: this project's environments, and the packages beside them.

`grids` and `minihack` have `cases() -> list[Case]` (`base.py`) and the kinds that these play (`KINDS`); `registered`
adds every other registered environment. What cannot be played on this machine is named with its reason.
"""
