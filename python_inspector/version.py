"""The version of the package, which recordings state."""

__version__ = "0.2.0"
