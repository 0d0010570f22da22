"""The speed of `harness bench` against PyTorch and transformers: alternating runs, and tables."""
