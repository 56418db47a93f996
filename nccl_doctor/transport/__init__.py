"""How to run something on one host."""
