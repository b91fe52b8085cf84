"""The memory plan: what a model needs on each GPU, from its configuration and tensor headers, never from its name."""
