"""The accuracy history: what every run measured, kept, compared and drawn. See ../README.md."""
