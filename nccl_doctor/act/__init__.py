"""Plans, runs, records, and evaluates changes to hosts. No other package changes hosts."""
