"""The online half of airbundle: resolves, fetches, proves and assembles bundles for sites with no internet."""

from airbundle_onsite import __version__

__all__ = ["__version__"]
