"""`forerun tune`: what was drafted at every position of some outputs, and what any policy would gain."""
