"""Kernels that nobody here wrote, judged: right ones must pass and wrong ones fail."""
