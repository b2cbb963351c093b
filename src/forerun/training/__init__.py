"""What recipes train with: windows of text, a loop with a budget, losses."""
