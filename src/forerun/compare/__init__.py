"""Two ways of decoding side by side: their times, whether they agree, and if not, why."""
