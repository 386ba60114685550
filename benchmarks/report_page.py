"""The page of a large run: seconds to write, megabytes, seconds until it is seen, zooming.

Claims, for a model of 1,000 layers in 16 stages and an update of 100,000 tasks: the page is written
in at most 5 s, has at most 5 MB, its first paint comes after at most 2 s in Chromium, and a zoom of
the timeline takes at most 50 ms a frame (the median; the slowest is printed, too).

The peer is the same run as a file for Perfetto, which has the tasks and nothing else: the page may
have at most 0.5x of its bytes. The records are made up, with times that no compression guesses.
"""

import pathlib
import shutil
import statistics
import sys
import tempfile

import millrace  # noqa: F401  # isort: skip
import harness
from millrace.tools.reports.page import write_page
from millrace.tools.reports.perfetto import write_perfetto

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests" / "reports"))
from synthetic import synthetic_run

SECONDS, MEGABYTES, PAINT, FRAME, RATIO = 5.0, 5.0, 2.0, 50.0, 0.5  # claims
_ZOOM = """
const done = arguments[0];
const canvas = document.querySelector(".gantt canvas");
const box = canvas.getBoundingClientRect();
const frames = [];
let count = 0;
function step() {
  if (count) frames.push(Number(canvas.dataset.frame));
  if (count === 60) return done(frames);
  count += 1;
  canvas.dispatchEvent(new WheelEvent("wheel", {
    deltaY: count % 40 < 30 ? -100 : 250, clientX: box.left + 600, clientY: box.top + 100,
    bubbles: true, cancelable: true,
  }));
  requestAnimationFrame(step);
}
requestAnimationFrame(step);
"""


def browse(path: pathlib.Path, rounds: int) -> tuple[list[float], list[float], list[float]]:
    """Returns seconds to the first paint and to all numbers, and milliseconds of frames."""
    from page_browser import PageBrowser

    paints, readies, frames = [], [], []
    with tempfile.TemporaryDirectory() as profile:
        browser = PageBrowser(profile)
        try:
            for _ in range(rounds):
                browser.open(path, "trace")
                entries = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime"
                paints.append(browser.wait(f"return {entries}") / 1e3)
                readies.append(
                    float(browser.run("return document.documentElement.dataset.ready")) / 1e3
                )
                frames += browser.driver.execute_async_script(_ZOOM)
        finally:
            browser.close()
    return paints, readies, frames


def main():
    """Writes both files, opens the page, and prints what that took."""
    options = harness.arguments(__doc__, rounds=5)
    layers, micro_batches = (100, 60) if options.small else (1000, 3125)
    run = synthetic_run("run", layers, 16, micro_batches, updates=1, epochs=20)
    harness.header(f"page of {layers} layers and {len(run.trace.spans)} tasks")
    with tempfile.TemporaryDirectory() as directory:
        page = pathlib.Path(directory) / "report.html"
        trace = pathlib.Path(directory) / "trace.json"
        times = harness.paired(
            {
                "page": lambda: str(write_page([run], page)),
                "perfetto": lambda: str(write_perfetto(run, trace)),
            },
            options.rounds,
        )
        for name, path in (("page", page), ("perfetto", trace)):
            seconds = sorted(times[name])
            print(
                f"  {name:<10} {statistics.median(seconds):6.2f} s to write "
                f"({seconds[0]:.2f}-{seconds[-1]:.2f}, n={len(seconds)}), "
                f"{path.stat().st_size / 1e6:6.2f} MB"
            )
        print(figure("seconds to write the page", times["page"], "s", SECONDS))
        megabytes = page.stat().st_size / 1e6
        print(f"size of the page = {megabytes:.2f} megabytes   claim <= {MEGABYTES:g} megabytes")
        if shutil.which("chromium") and shutil.which("chromedriver"):
            show(page, options.rounds)
        else:
            print("  no Chromium here: neither paint nor zoom were measured")
        print(harness.ratio("time, page / perfetto", times["page"], times["perfetto"])[1])
        ratio = page.stat().st_size / trace.stat().st_size
        print(f"bytes, page / perfetto = {ratio:.2f}x   claim <= {RATIO}x")


def show(page: pathlib.Path, rounds: int):
    """Prints how fast a browser is with a page."""
    try:
        paints, readies, frames = browse(page, rounds)
    except ImportError as error:
        print(f"  {error}: neither paint nor zoom were measured")
        return
    print(figure("first paint", paints, "s", PAINT))
    print(figure("all drawn", readies, "s"))
    print(figure("frame of a zoom", frames, "ms", FRAME))


def figure(name: str, values: list[float], unit: str, claim: float | None = None) -> str:
    """Returns a line with the median, the spread and the claim."""
    bar = f"   claim <= {claim:g} {unit}" if claim else ""
    return (
        f"{name} = {statistics.median(values):.2f} {unit} "
        f"({min(values):.2f}-{max(values):.2f}, n={len(values)}){bar}"
    )


if __name__ == "__main__":
    main()
