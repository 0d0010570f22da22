"""Exit codes of all commands: `plumbline exit-codes` lists them, harness/cli/README.md explains."""

from __future__ import annotations

OK, FAIL, USAGE, BAD_INPUT, UNSUPPORTED, BLIND, NONDETERMINISTIC, TIMER, INTERRUPTED = (
    0, 1, 2, 3, 4, 8, 9, 10, 130,
)  # fmt: skip
MEANINGS = {
    OK: "pass, or done",
    FAIL: "fail; the candidate raised, crashed or hung; something that does no work passes",
    USAGE: "usage: options or files of another form",
    BAD_INPUT: "bad input: a file is not what it claims",
    UNSUPPORTED: "unsupported: nothing here can judge it, and the reason says why",
    5: "device error",
    6: "timeout",
    7: "internal error",
    BLIND: "blind: nothing was proved",
    NONDETERMINISTIC: "nondeterministic",
    TIMER: "timer disagrees: it passes, but its times are not believed",
    INTERRUPTED: "interrupted",
}
STATUSES = {
    "pass": OK, "fail": FAIL, "error": FAIL, "unsupported": UNSUPPORTED, "bad_input": BAD_INPUT,
    "device_error": 5, "timeout": 6, "internal_error": 7, "blind": BLIND,
    "nondeterministic": NONDETERMINISTIC, "timer_disagrees": TIMER,
}  # fmt: skip
"""Of a verdict, as those of the harness."""


def listed() -> str:
    """A line for each."""
    return "\n".join(f"  {code:3}  {text}" for code, text in MEANINGS.items())
