"""Generation: sampling, text, conversations, and the KV pool behind transformers' Cache."""
