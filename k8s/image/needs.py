"""Print what extras of nodeproof need, one a line: `needs.py node k8s < pyproject.toml`.

The image installs that before nodeproof, so that torch has a layer of its own: a new version of the
suites is then a small pull, and pulling is part of the time that a new node is given.
"""  # noqa: INP001  a script, run while the image is built

import sys
import tomllib

project = tomllib.load(sys.stdin.buffer)["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *(line for name in sys.argv[1:] for line in extras[name])]
sys.stdout.writelines(f"{line}\n" for line in wanted)
