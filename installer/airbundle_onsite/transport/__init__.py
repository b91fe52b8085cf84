"""How a bundle reaches a site: over several media, piece by piece, from a file server, and repaired on the way."""
