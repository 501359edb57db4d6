"""What benchmarks/update.py measures: a recorded batch, and two programs that train on it."""
