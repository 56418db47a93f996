"""Hosts reached over SSH: by paramiko, or the ssh program where only that will do."""
