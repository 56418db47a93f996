"""The port mesh, in which the hosts dial each other."""
