"""The only package that changes hosts: plans of operations, their recorded runs, and the outcomes."""
