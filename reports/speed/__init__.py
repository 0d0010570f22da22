"""How fast `harness bench` is beside PyTorch and transformers: measured in turn, and as tables."""
