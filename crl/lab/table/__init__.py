"""`crl table`: the recorded evaluations of several runs as one table, as in the paper's Table 1. Nothing is run."""
