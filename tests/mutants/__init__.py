"""Planted bugs: small changes of the package's own code, and which tests find them."""
