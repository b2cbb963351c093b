"""Trees of drafted tokens: reading their shapes, searching for good ones, growing them under a budget."""
