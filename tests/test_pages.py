"""Every block of the pages of docs runs, and prints the output that the page shows."""

import pytest
from documentation import PAGES, README, REFERENCE, Block, Directories, blocks_of, check_block
from hub_server import running_hub

pytestmark = pytest.mark.slow

# Examples of the reference are quick, and run in `test_readme.py`.
RUNNING = [
    pytest.param(block, id=str(block))
    for page in PAGES
    for block in blocks_of(page)
    if block.runs_here and page not in (README, REFERENCE)
]


@pytest.fixture(scope="module")
def hub():
    with running_hub() as server:
        yield server


@pytest.fixture(scope="module")
def directories(tmp_path_factory) -> Directories:
    return Directories(tmp_path_factory)


@pytest.mark.parametrize("block", RUNNING)
def test_block(block: Block, directories, hub):
    check_block(block, directories.of(block.page), hub)
