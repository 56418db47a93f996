"""Texts and what they denote: host lists, addresses, shell lines, secrets and files.

Nothing here depends on clusters.
"""
