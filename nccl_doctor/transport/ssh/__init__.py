"""Hosts over SSH: paramiko, and OpenSSH's own program where paramiko can't."""
