"""The host's part of fix-port."""
