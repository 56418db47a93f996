"""The all-reduce on one host."""
