"""`python -m python_inspector` is the `inspector` command."""

import sys

from .cli.inspector import main

if __name__ == "__main__":
    sys.exit(main())
