"""record(): hooks and patches that turn the blocks of a run into checkpoints."""
