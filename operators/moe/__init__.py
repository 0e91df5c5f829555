"""Linear operators, one a file."""
