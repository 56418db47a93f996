"""Kinds of operations, by what they change."""
