"""Taps: one small table per architecture says which class or function is which block."""
