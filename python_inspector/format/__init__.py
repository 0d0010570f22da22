"""The recording format: its values, reading, writing, and checks of what was written."""
