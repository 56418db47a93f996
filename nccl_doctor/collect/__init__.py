"""Collects a snapshot from the hosts: connections, facts, port mesh, rates and all-reduce."""
