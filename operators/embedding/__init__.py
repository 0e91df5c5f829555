"""Embedding operators, one a file."""
