"""Attention operators: one a file; the other files are parts that they share."""
