"""What looks up earlier tokens: an index, what is kept between requests, and for whom."""
