"""What the draft-model method is made of: its cache and drafts in another vocabulary."""
