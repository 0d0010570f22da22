"""Commands: inspector and plumbline."""
