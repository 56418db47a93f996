"""Texts and what they name: host lists, addresses, shell lines, secrets, files. Knows nothing of clusters."""
