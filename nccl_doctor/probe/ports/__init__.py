"""Handlers of the requests that ``fix-port`` sends to a host."""
