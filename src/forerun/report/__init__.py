"""Results, tables and charts of commands, written to a terminal, as text, JSON, Markdown, HTML or images."""
