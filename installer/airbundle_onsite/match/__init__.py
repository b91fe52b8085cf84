"""Holding a host's fingerprint against the profile a bundle was built for, and against the bundle. Pure.

A value that the fingerprint could not read is a ``warn`` that says so, never a ``fail``.
"""

from airbundle_onsite.match.bundle import match_bundle
from airbundle_onsite.match.profile import match_profile

__all__ = ["match_bundle", "match_profile"]
