"""``python -m airbundle``."""

import sys

from airbundle.cli import main

sys.exit(main())
