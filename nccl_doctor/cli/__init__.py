"""Commands: flags in, exit code out; no logic."""
