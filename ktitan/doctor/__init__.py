"""`ktitan doctor`: what of this machine and installation ktitan can use, and what is in its way."""
