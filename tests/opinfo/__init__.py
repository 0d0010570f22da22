"""torch's own kernels on PyTorch's samples of the operations of the catalogue: each is right."""
