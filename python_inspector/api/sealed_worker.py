"""The process of a function under check(sealed=...): it starts before a reference exists, is
confined before torch is imported, and waits for its job on standard input with all imports done.
Where the kernel keeps processes apart it forks others until then, one for each function.

usage: python -m python_inspector.api.sealed_worker FOLDER ANSWERS CONTROL LIFELINE
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path

from . import confined, forking, lifeline


def main() -> None:
    folder, answers = Path(sys.argv[1]), int(sys.argv[2])
    control, life = socket.socket(fileno=int(sys.argv[3])), int(sys.argv[4])
    lifeline.end_with(life)
    apart = confined.enter(folder)
    import torch

    from . import sealed_calls

    if its := forking.serve(control, apart=apart):
        os.close(answers)
        os.close(life)
        folder, answers, life = its
        lifeline.end_with(life)
        if not confined.enter(folder):  # a function here could write into the process that waits
            os._exit(1)
        torch.seed()
    line = sys.stdin.readline()
    if line:  # else the judge ended without a job for this process
        end = os._exit  # no thread and no handler of the function runs afterwards
        end(sealed_calls.run(json.loads(line), folder, answers))


if __name__ == "__main__":
    main()
