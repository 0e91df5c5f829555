"""Experts operators, one a file."""
