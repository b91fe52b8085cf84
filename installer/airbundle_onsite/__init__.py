"""The site half of airbundle: verifies, installs, starts and proves a bundle.

Standard library and vendored pure Python only, Python 3.9 or newer. It travels inside every bundle as
``onsite.pyz`` and never imports the online half.
"""

__version__ = "0.1.0"
