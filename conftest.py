"""Repository conftest: keep the checkout off sys.path and load the plugin by name."""

import sys
from pathlib import Path

_ROOT = Path(__file__).parent

# `python -m pytest` puts the checkout on sys.path, where our kernels/ would answer to the name of
# the PyPI distribution `kernels`.
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != _ROOT]

pytest_plugins = ["nodeproof.plugin", "pytester"]
