"""The terminal chat: `python -m ktitan.local_chat --model_path M`, and `ktitan chat M`, which is the same program."""
