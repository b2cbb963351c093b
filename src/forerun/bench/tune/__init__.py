"""`forerun tune`: what was drafted at every position of some outputs, and what every length would gain."""
