"""A host's end of the rate: TCP streams at full speed to one other host at a time."""
