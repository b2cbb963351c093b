"""The engine: rounds of drafting and verifying over a ragged batch, and the plain loop beside them."""
