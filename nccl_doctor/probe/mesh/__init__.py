"""The part of the port mesh test that runs on each host."""
