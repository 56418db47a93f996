"""The only room that changes hosts: a plan of operations, running it with a record, and the outcome."""
