"""Runs in turns, intervals around their results, resumable files of records, and readers of questions."""
