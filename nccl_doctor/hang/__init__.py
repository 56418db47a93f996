"""Determines whether a running job is hanging and which rank the other ranks are waiting for."""
