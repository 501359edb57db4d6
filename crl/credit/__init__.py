"""Credit: what outputs and episodes earned, and the samples made of that (eq. 3, 5, 7). Rows in, rows out; no torch."""
