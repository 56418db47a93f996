"""The hosts and logins that people really have, as a table: what stands on one, and what has to be said of it."""
