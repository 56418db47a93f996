"""The part of the all-reduce that runs on each host."""
