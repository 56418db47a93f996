"""From a snapshot to its report: running the checks, causes over consequences, summary, rows, comparing."""
