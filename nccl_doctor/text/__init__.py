"""Texts and what they denote: host lists, addresses, shell lines, secrets, files. Independent of clusters."""
