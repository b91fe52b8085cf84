"""Container images as documents and blobs: names, manifests, and the registry's HTTP API."""
