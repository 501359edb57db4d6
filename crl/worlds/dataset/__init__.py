"""A data set with a reward function: each row is a task, what the actor writes is what the function scores.

`rows` reads the data set and says which row a seed means, `rewards` calls functions that were written for TRL's
GRPOTrainer, `environment` plays. Nothing here writes files.
"""

from crl.worlds.dataset.environment import DatasetConfig

__all__ = ["DatasetConfig"]
