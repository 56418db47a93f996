"""Requests and parses facts about hosts, and resolves host names."""
