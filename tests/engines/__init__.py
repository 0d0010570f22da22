"""Kernels from outside this project, judged: right ones must pass and wrong ones fail."""
