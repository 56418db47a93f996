"""How logs show faults that a check finds too; the page stands with the check."""
