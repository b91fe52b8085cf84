"""Bundles by difference: what the site has already is left out of the payload.

`base` reads what the site is said to have, `facts` hashes tensors and remembers them, `thin` decides file by file where
bytes come from, `rebase` makes a bundle of one that is finished, `compare` says what differs between two.
"""
