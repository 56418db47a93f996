"""This host's part of the port mesh."""
