"""The committed recordings, and from what a user asks for to a recording."""
