"""`forerun bench`: measurements on the user's machine."""
