"""What hosts tell of themselves."""
