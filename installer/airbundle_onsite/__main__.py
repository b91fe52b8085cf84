"""``python3 onsite.pyz …``"""

import sys

from airbundle_onsite.cli import main

if __name__ == "__main__":
    sys.exit(main())
