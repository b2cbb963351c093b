"""Heads as other engines read them: what is wrong with one, what it drafts there, and portable copies."""
