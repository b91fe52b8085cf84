"""Lossless compression of weights, for ``--compress weights``."""
