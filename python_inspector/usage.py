"""A command line that says what may have been meant, where it does not understand."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

DTYPES = {
    "float16": "f16", "half": "f16", "fp16": "f16", "bfloat16": "bf16", "float32": "f32",
    "float": "f32", "fp32": "f32", "float64": "f64", "double": "f64",
}  # fmt: skip
"""Torch's names, and others that are usual, with ours."""


def dtype(text: str) -> str:
    """Of an option: our name where it is torch's."""
    return DTYPES.get(text.removeprefix("torch."), text)


class Parser(argparse.ArgumentParser):
    """As argparse's, and the parsers of its commands are of this class, too."""

    meant: Mapping[str, str] = {}
    """Options that people know from elsewhere, and what does here what they do there."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parsers, words = [self], list(sys.argv[1:] if args is None else args)
            while (inner := parsers[-1]._chosen(words)) is not None:
                parsers.append(inner)
            known = [name for p in parsers for a in p._actions for name in a.option_strings]
            parsers[-1]._not_taken(unknown, known)
        return options

    def _chosen(self, words: Sequence[str]) -> Parser | None:
        """The parser of the command that the words name."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                known: dict[str, Parser] = action.choices
                return next((known[word] for word in words if word in known), None)
        return None

    def _not_taken(self, unknown: Sequence[str], known: Sequence[str]) -> NoReturn:
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        texts = []
        for word in options or unknown:
            if word in known:  # of a command around this one
                texts.append(f"{word} goes in front of {self.prog.split()[-1]}")
                continue
            advice = self.meant.get(word.replace("_", "-"))
            hint = f"; did you mean {advice}?" if advice else did_you_mean(word, known)
            texts.append(f"there is no {word}{hint}")
        self.error("; ".join(texts))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        raise argparse.ArgumentError(
            action, f"{value!r} is none of {', '.join(known)}{did_you_mean(str(value), known)}"
        )


def did_you_mean(typed: str, known: Iterable[str]) -> str:
    """ "; did you mean --batch?", or nothing where no name is near."""
    names = {_letters(name): name for name in known}
    near = difflib.get_close_matches(_letters(typed), names, n=1)
    return f"; did you mean {names[near[0]]}?" if near else ""


def _letters(name: str) -> str:
    return name.lower().replace("_", "-").lstrip("-")
