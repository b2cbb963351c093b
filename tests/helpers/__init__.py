"""What several test files share: tiny models, engines, strategies, refusals."""
