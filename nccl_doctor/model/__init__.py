"""Models of requests and answers: clusters, findings, reports and other documents."""
