"""Kernels in the formats of benchmarks, judged by check(): an adapter each."""
