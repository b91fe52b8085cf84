"""The site's release store: lock, journal, releases. See docs/decisions/store-and-journal.md."""
