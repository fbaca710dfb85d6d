"""Counts of the scorecard."""

import pytest

from docs.results import scorecard

PAGE = r"""# Scorecard

<!-- counts -->
old
<!-- end of counts -->

| other table | x |
| --- | --- |
| a | b |

## EXor

### EXor: claims

| result of the paper | published | ours | verdict |
| --- | --- | --- | --- |
| It rains | 1 | 2 | different: not by much |
| It \| snows | | | not run |
| Wind | 1 | 1 | same, at a smaller setting |
| Better spent parameters | | | undecided: p .3 |
| Parameters, small | 192 | 192 | same |

## Small text

### Small text: parameters

| result of the paper | published | ours | verdict |
| --- | --- | --- | --- |
| coupled | 177 | 178 | within 2 %: +0.88% |
| wide | 177 | 200 | different |
"""


def test_findings_are_counted_apart_from_parameters():
    page = scorecard.render(PAGE)
    expected = (
        "<!-- counts --> Of 4 findings, 1 are the same (1 of them at a smaller setting than the paper's), 1 different, 1 "
        "undecided, 0 not tested, and 1 not run. Of 3 parameter counts, which need no training, 1 are the same, 1 within 2 %, "
        "and 1 different. | system |"
    )
    assert expected in " ".join(page.split())
    assert "| [EXor](#exor) | 4 | 1 | 1 | 1 | 0 | 1 | 1 | 1 | 0 | 0 |\n| [Small text](#small-text) | 0 | 0 | 0 | 0 " in page
    assert "| [Small text](#small-text) | 0 | 0 | 0 | 0 | 0 | 0 | 2 | 0 | 1 | 1 |\n" in page
    assert "| all | 4 | 1 | 1 | 1 | 0 | 1 | 3 | 1 | 1 | 1 |\n\n<!-- end of counts -->\n\n| other table" in page
    assert scorecard.render(page) == page


def test_findings_at_the_papers_setting_need_no_remark():
    page = scorecard.render(PAGE.replace("same, at a smaller setting", "same"))
    assert "Of 4 findings, 1 are the same, 1 different, 1 undecided, 0 not tested, and 1 not run." in " ".join(page.split())


def test_an_unknown_verdict_is_named():
    with pytest.raises(
        ValueError,
        match=r"It rains: expected a verdict that begins with same, different, undecided, not tested, not run, got 'n",
    ):
        scorecard.render(PAGE.replace("different: not", "nearly: not"))
