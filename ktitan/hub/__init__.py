"""Models of the HuggingFace hub, through huggingface_hub: its cache, tokens, HF_ENDPOINT, offline mode."""
