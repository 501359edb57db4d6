"""The systems that `benchmarks/bank.py` compares, each behind the protocol of `base.py`."""
