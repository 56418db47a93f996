"""Turns a snapshot into a report: runs the checks, attaches consequences to causes, summarises and compares."""
