"""Commands, which only turn options into calls and results into exit codes."""
