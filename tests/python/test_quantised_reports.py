"""check() finds each fault of quantised kernels that was reported, and passes the right kernel."""

from __future__ import annotations

import pytest
from quantised_reports import ELSEWHERE, REPORTS, UNSHOWN, Row

from python_inspector import WrongError, check

IDS = [f"{row.report}, {row.fault}" for row in REPORTS]


@pytest.mark.parametrize("row", REPORTS, ids=IDS)
def test_the_fault_fails(row: Row) -> None:
    with pytest.raises(WrongError, match="fail"):
        check(row.wrong, row.like, row.inputs(), explain=False)


@pytest.mark.parametrize("row", REPORTS, ids=IDS)
def test_the_right_kernel_passes(row: Row) -> None:
    assert check(row.right, row.like, row.inputs(), explain=False).passed


def test_every_report_is_in_one_place() -> None:
    shown = {row.report for row in REPORTS}
    assert not shown & ELSEWHERE.keys() and not shown & UNSHOWN.keys()
    assert len(shown | ELSEWHERE.keys() | UNSHOWN.keys()) == 15
