"""Looking up earlier tokens: an index of texts, and what is kept between requests by namespace."""
