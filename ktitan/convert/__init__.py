"""`ktitan convert`: any MODEL as a Titan Native directory."""

from ktitan.convert.run import Converted, convert_model

__all__ = ["Converted", "convert_model"]
