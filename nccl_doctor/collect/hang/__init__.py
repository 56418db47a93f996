"""What the ranks of a running job do."""
