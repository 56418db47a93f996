"""From a snapshot to its report: run the checks, attach consequences to causes, summarise and compare."""
