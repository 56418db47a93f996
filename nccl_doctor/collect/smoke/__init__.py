"""The all-reduce: its plan, its run, and its repetition in groups of hosts."""
