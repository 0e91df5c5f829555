"""The only package that may touch native code; this version has none and computes with PyTorch."""
