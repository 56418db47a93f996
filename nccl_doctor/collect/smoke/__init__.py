"""The all-reduce: planned, run, and repeated over parts of the hosts."""
