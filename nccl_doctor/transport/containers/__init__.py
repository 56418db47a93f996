"""Containers on the hosts: entered from there."""
