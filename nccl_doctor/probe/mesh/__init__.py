"""The port mesh on one host."""
