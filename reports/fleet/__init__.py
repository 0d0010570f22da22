"""Checkpoints over many machines: shards of a run, the recordings they need, and one result."""
