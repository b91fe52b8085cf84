"""The rehearsal: a bundle's own installer, run here with no network but a sinkhole that records what asks for what."""
