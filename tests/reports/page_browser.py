"""Chromium without a screen, and what a test asks it about a page."""

import json
import shutil
import time

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
# Counts the colours of a picture, on a page that may do so.
_COLORS = """
const [png, done] = arguments;
const image = new Image();
image.onload = () => {
  const canvas = document.createElement("canvas");
  canvas.width = image.width;
  canvas.height = image.height;
  const context = canvas.getContext("2d");
  context.drawImage(image, 0, 0);
  const pixels = new Uint32Array(context.getImageData(0, 0, image.width, image.height).data.buffer);
  done(new Set(pixels).size);
};
image.src = "data:image/png;base64," + png;
"""


class PageBrowser:
    """One browser, which opens pages from files."""

    def __init__(self, profile, width=1280, height=900):
        from selenium import webdriver
        from selenium.webdriver.chrome.service import Service

        options = webdriver.ChromeOptions()
        options.binary_location = CHROMIUM
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
        self.driver = webdriver.Chrome(options, Service(DRIVER))
        self.driver.set_script_timeout(30)

    def close(self):
        self.driver.quit()

    def open(self, path, fragment=""):
        """Opens a page, and waits until it is drawn."""
        self.driver.get("about:blank")
        self.console(), self.requests()  # those of pages before it
        self.driver.get(f"file://{path}#{fragment}")
        self.wait("return document.documentElement.dataset.ready")
        self.settle()

    def go(self, tab):
        self.driver.find_element("id", f"tab-{tab}").click()
        self.wait(f"return document.getElementById('panel').dataset.tab === '{tab}'")
        self.settle()

    def settle(self):
        """Waits for two frames: sizes are observed after the first one."""
        self.driver.execute_async_script(
            "const done = arguments[0];"
            "requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done, 30)));"
        )

    def wait(self, script, seconds=20):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if value := self.run(script):
                return value
            time.sleep(0.02)
        raise TimeoutError(script)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def console(self):
        """Errors and warnings since the last call."""
        return [
            each["message"]
            for each in self.driver.get_log("browser")
            if each["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self):
        """Addresses that were asked for since the last call."""
        events = [json.loads(each["message"]) for each in self.driver.get_log("performance")]
        return [
            event["message"]["params"]["request"]["url"]
            for event in events
            if event["message"]["method"] == "Network.requestWillBeSent"
        ]

    def dark(self, is_dark):
        value = "dark" if is_dark else "light"
        self.driver.execute_cdp_cmd(
            "Emulation.setEmulatedMedia",
            {"features": [{"name": "prefers-color-scheme", "value": value}]},
        )

    def screenshot(self):
        return self.driver.get_screenshot_as_base64()

    def colors(self, png):
        """How many colours a picture has."""
        self.driver.get("about:blank")
        return self.driver.execute_async_script(_COLORS, png)

    def pointer(self, x, y, *events, shift=False):
        """Moves the pointer to a place, and does there what is asked: "down", "up", "click"."""
        kinds = {"down": "mousePressed", "up": "mouseReleased"}
        for event in ("move", *events):
            kind = kinds.get(event, "mouseMoved")
            pressed = {"button": "left", "clickCount": 1} if event in kinds else {}
            self.driver.execute_cdp_cmd(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": x, "y": y, "modifiers": 8 if shift else 0, **pressed},
            )
        self.settle()

    def drag(self, x, y, to, shift=False):
        shared = {"y": y, "modifiers": 8 if shift else 0, "button": "left"}
        for kind, at in (("mousePressed", x), ("mouseMoved", to), ("mouseReleased", to)):
            self.driver.execute_cdp_cmd(
                "Input.dispatchMouseEvent",
                {"type": kind, "x": at, "clickCount": 1, "buttons": 1, **shared},
            )
        self.settle()

    def wheel(self, x, y, delta):
        self.driver.execute_cdp_cmd(
            "Input.dispatchMouseEvent",
            {"type": "mouseWheel", "x": x, "y": y, "deltaX": 0, "deltaY": delta},
        )
        self.settle()

    def key(self, name):
        from selenium.webdriver.common.action_chains import ActionChains
        from selenium.webdriver.common.keys import Keys

        ActionChains(self.driver).send_keys(getattr(Keys, name, name)).perform()
        self.settle()

    def box(self, selector):
        """Left, top, width and height on the screen, scrolled to."""
        return self.run(
            "const each = document.querySelector(arguments[0]);"
            "each.scrollIntoView({block: 'center'});"
            "const b = each.getBoundingClientRect(); return [b.left, b.top, b.width, b.height];",
            selector,
        )

    def text(self, selector):
        return self.run(
            "const e = document.querySelector(arguments[0]); return e && !e.hidden ? e.innerText : ''",
            selector,
        )

    def view(self):
        """The part of the time that the first timeline shows."""
        return self.run(
            "const c = document.querySelector('.gantt canvas');"
            "return [Number(c.dataset.from), Number(c.dataset.to)]"
        )
