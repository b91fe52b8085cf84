"""Proves a bundle: its shape and manifest (`bundle`), its parts (`parts`), its content as it streams (`stream`)."""
