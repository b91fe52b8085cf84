"""Bringing releases up and down without losing what works. See docs/decisions/store-and-journal.md."""
