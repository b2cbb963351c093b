"""Other projects' policies for the length of drafts, on the same recorded rounds as forerun's."""
