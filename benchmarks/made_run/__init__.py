"""A run made up from a seed, in columns, through the real record: for measuring and testing what reads runs.

:func:`make` writes every table of the loop except what only models can make: texts, scores and outcomes are drawn, the
bank is kept by the functions of `crl/bank/`, and everything refers to what it should (retrievals to the bank they were
searched in, credits to episodes, operations to outputs). `play.py` draws what is played, `learn.py` what is learned
from it, `run.py` writes rounds.
"""

from .run import Made, Size, make, writing

__all__ = ["Made", "Size", "make", "writing"]
