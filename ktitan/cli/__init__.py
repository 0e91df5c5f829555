"""The `ktitan` command."""
