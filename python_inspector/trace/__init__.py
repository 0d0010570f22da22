"""A call made again on copies of its inputs: in float64, and as correct kernels would round it."""
