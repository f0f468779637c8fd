"""Photograph the page of a model, as a browser shows it, for `app.md`.

    pip install playwright && playwright install chromium
    roformer-lite demo
    roformer-lite app roformer-lite-demo --port 7860
    python docs/photograph_app.py http://127.0.0.1:7860 "the twenty-first of June 1987"

An installed browser is taken with `--browser /usr/bin/chromium`.
"""

import argparse
from pathlib import Path

from playwright.sync_api import sync_playwright

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("address", help="of the page")
parser.add_argument("texts", nargs="+", help="what is written into its boxes")
parser.add_argument("--browser", help="path of the browser")
parser.add_argument("--out", default=Path(__file__).with_name("images") / "app.png", help="the picture")
arguments = parser.parse_args()

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(executable_path=arguments.browser, args=["--no-sandbox", "--disable-gpu"])
    page = browser.new_page(viewport={"width": 1000, "height": 700})
    page.goto(arguments.address)
    for number, text in enumerate(arguments.texts):
        page.locator("textarea:visible").nth(number).fill(text)
    page.get_by_role("button", name="Answer", exact=True).click()
    page.get_by_text("Where the model looked").click()
    page.locator("table.attention").wait_for()
    page.wait_for_timeout(1000)  # until nothing moves any more
    page.screenshot(path=arguments.out, full_page=True)
    browser.close()
