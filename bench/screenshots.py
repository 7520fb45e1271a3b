"""The screenshots in docs/images, taken of a served index in a real Chromium (Debian: chromium, chromium-driver).

python bench/screenshots.py docs/images        # the extra `static`; the index is of the installed Python packages
"""

import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import tyro
from PIL import Image

import bidr
from bidr.demo.python_docs import collect

sys.path.append(str(Path(__file__).parents[1] / "tests" / "helpers"))
from browser import browser
from sample_server import running

DOCUMENTS = 6_000
DRAWN = "const board = document.getElementById('board'); return !board.hidden && !board.classList.contains('stale')"


class Shot(NamedTuple):
    """One picture. codes: whether the codes' own ranking stands beside the answers."""

    name: str
    width: int
    height: int
    dark: bool = False
    codes: bool = True


SHOTS = (
    Shot("page-light", 1280, 1240),
    Shot("page-dark", 1280, 1240, dark=True),
    Shot("page-phone", 360, 780, codes=False),
    Shot("page-phone-codes", 360, 780, dark=True),
)


def build_example(folder: Path) -> Path:
    """Build an index of the documentation of the installed packages, with package and length as attributes."""
    documents = [
        document._replace(
            attributes={
                "package": document.title.rpartition(" in ")[2].partition(".")[0],
                "words": len(document.text.split()),
            }
        )
        for document in collect(DOCUMENTS).documents
    ]
    data = bidr.Dataset.from_records("python", documents)
    codes = bidr.PlainCodes(bytes_per_doc=8)
    return bidr.build(data, encoder="wordllama", out=folder / "python", plain=codes, lexical=True)


def main(
    out: tyro.conf.Positional[Path], question: str = "merge two sorted arrays", condition: str = "words < 200"
) -> None:
    """Serve the index, ask a question with a filter, and save what is seen."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, running(build_example(Path(folder)), Path(folder) / "log") as server:
        for shot in SHOTS:
            with browser(shot.width, shot.height, dark=shot.dark, scale=2 if shot.width < 500 else 1) as driver:
                query = {"q": question, "k": 6, "codes": int(shot.codes), "f": condition}
                for _ in range(3):  # the first search of a browser waits for its connection
                    driver.get(f"{server.url}/?{urlencode(query)}")
                    until = time.monotonic() + 20
                    while not driver.execute_script(DRAWN) and time.monotonic() < until:
                        time.sleep(0.05)
                time.sleep(0.5)
                path = out / f"{shot.name}.png"
                Image.open(BytesIO(driver.get_screenshot_as_png())).quantize(255, Image.Quantize.MAXCOVERAGE).save(
                    path, optimize=True
                )
                print(f"{path}  {path.stat().st_size / 1000:.0f} KB")


if __name__ == "__main__":
    tyro.cli(main)
