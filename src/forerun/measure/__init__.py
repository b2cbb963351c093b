"""Runs in turns and in pairs, intervals around their results, resumable records, and question files."""
