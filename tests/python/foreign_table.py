"""python tests/python/foreign_table.py: the faults of test_foreign_kernels.py, by kind."""

import foreign_attention
import foreign_experts
import foreign_rotary
import torch

CASES = [*foreign_rotary.CASES, *foreign_attention.CASES, *foreign_experts.CASES]


def main() -> None:
    """A line per fault: its kind, then the module and what is wrong."""
    made = [case(torch.float32) for case in CASES]
    for case in sorted(made, key=lambda case: case.kind):
        print(f"{case.kind:9} {case.name}")


if __name__ == "__main__":
    main()
