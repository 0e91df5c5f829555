"""An OpenAI-compatible server for one model: `ktitan serve MODEL`."""
