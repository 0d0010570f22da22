"""`python -m plumbline` is the `plumbline` command."""

import sys

from .inspector.cli.plumbline import main  # type: ignore[import-not-found]

if __name__ == "__main__":
    sys.exit(main())
