"""Engines of others, each built from a recording: its configuration and weights, in their terms.

A module has `engine(recording)`, which returns an Engine or raises Unsupported with the reason.
"""
