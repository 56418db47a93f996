"""Command modules, which turn options into function calls and results into exit codes."""
