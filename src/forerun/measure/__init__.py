"""Intervals around measurements, resumable files of records, and readers of questions."""
