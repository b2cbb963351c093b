"""What `forerun simulate` is made of: options, one file a mode, tables and charts."""
