"""Lookup of earlier tokens: an index of texts, and stores between requests by namespace."""
