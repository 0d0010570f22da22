"""One module per command of `reports`: add(commands) declares it, run(options) does it.

run returns the exit code. It may raise OSError and ValueError, whose text __main__ prints (exit
code 3), and UsageError (exit code 2). What takes long to import is imported in run.
"""

from __future__ import annotations

import argparse
from typing import TypeAlias

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


class UsageError(Exception):
    """Arguments that do not go together; the text names the option and what to do."""
