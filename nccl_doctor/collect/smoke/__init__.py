"""Plans the all-reduce, runs it, and repeats it in groups of hosts to isolate a fault."""
