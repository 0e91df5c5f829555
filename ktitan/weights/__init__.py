"""Weight sources, and how their tensors fill a model."""
