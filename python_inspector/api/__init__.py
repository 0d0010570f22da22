"""All that a user imports: check, verify, draw, verdicts."""
