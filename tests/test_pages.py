"""Every block of the pages of docs runs, and prints the output that the page shows."""

import pytest
from documentation import PAGES, README, REFERENCE, Block, blocks_of

pytestmark = pytest.mark.slow

# Examples of the reference are quick, and run in `test_readme.py`.
RUNNING = [
    pytest.param(block, id=str(block))
    for page in PAGES
    for block in blocks_of(page)
    if block.runs_here and page not in (README, REFERENCE)
]


@pytest.mark.parametrize("block", RUNNING)
def test_block(block: Block, check_block):
    check_block(block)
