"""`forerun bench`: measurements on the user's machine, and other engines to measure against."""
