"""Runs commands over the connections that the nodes of a job open to node 0 (``nccl-doctor check --join``)."""
