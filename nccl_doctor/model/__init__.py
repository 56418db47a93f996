"""What is asked for and answered: clusters, findings, reports and the other documents."""
