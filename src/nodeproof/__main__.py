"""`python -m nodeproof`."""

import sys

from nodeproof.cli import main

sys.exit(main())
