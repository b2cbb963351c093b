"""Parts of the draft-model method: its cache, and drafts in another vocabulary."""
