"""What a running job's ranks do, judged: does it stand still, and for which of them do the others wait. Pure."""
