"""Creates a report from a snapshot by running the checks and attaching consequences to causes."""
