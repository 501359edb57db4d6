"""Great Expectations validates every committed round: beside the run, in a process of its own, outside the chain.

`round.py` validates one round and compares verdicts with the compiled pass, `subscriber.py` has it done while a run
goes on, `process.py` is the process that does it. A floor above `engine` and `report`, as the trackers are.
"""
