"""Renders results of the harness for people: see README.md."""
