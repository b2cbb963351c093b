"""Studies behind the figures in the documents; they run from the repository and are not installed."""
