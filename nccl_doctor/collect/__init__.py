"""From hosts to a snapshot: connect, facts, mesh, all-reduce."""
