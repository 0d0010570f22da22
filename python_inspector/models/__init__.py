"""The models that are recorded: tiny ones, what they are run on, and where their weights are."""
