"""The page around the page of a run that goes on: it asks for changes, and shows the newer page.

    +--------------------------------------------+
    | runs/7: it goes on, read at 12:03:04  [x]  |   asks for `state` once a second
    +--------------------------------------------+
    |  page.html?version=... in a frame          |   changes places with a newer one that has loaded
    +--------------------------------------------+

The inner page is the one that a file has, byte for byte, and may connect to nothing.
"""

import base64
import hashlib
import html

_STYLE = """
html, body { margin: 0; height: 100%; }
body { display: flex; flex-direction: column; font: 13px system-ui, sans-serif;
  color-scheme: light dark; }
header { padding: 4px 12px; border-bottom: 1px solid #8886; display: flex; gap: 16px; }
#state { flex: 1; }
main { flex: 1; position: relative; }
iframe { position: absolute; inset: 0; width: 100%; height: 100%; border: 0; }
.loading { visibility: hidden; }
"""
# A newer page gets the fragment of the one before it, which names the tab, and its scroll position,
# and is shown once it has drawn itself.
_SCRIPT = """
"use strict";
const main = document.querySelector("main");
const state = document.getElementById("state");
const paused = document.getElementById("paused");
let shown = "", frame = null, loading = false;
async function drawn(next) {
  for (let waits = 0; waits < 100; waits++) {
    if (next.contentDocument.documentElement.dataset.ready) return;
    await new Promise((resume) => setTimeout(resume, 50));
  }
}
function show(version) {
  loading = true;
  const next = document.createElement("iframe");
  next.title = "report";
  next.className = "loading";
  const fragment = frame ? frame.contentWindow.location.hash : location.hash;
  next.src = "page.html?version=" + encodeURIComponent(version) + fragment;
  next.addEventListener("load", async () => {
    await drawn(next);
    if (frame) {
      next.contentWindow.scrollTo(frame.contentWindow.scrollX, frame.contentWindow.scrollY);
      frame.remove();
    }
    next.className = "";
    frame = next;
    shown = version;
    loading = false;
  }, { once: true });
  main.append(next);
}
async function ask() {
  try {
    const answer = await fetch("state", { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const now = await answer.json();
    state.textContent = now.text;
    document.title = now.title;
    if (now.version !== shown && !loading && !(paused.checked && frame)) show(now.version);
  } catch (error) {
    state.textContent = "millrace report --follow does not answer: " + error.message;
  }
  setTimeout(ask, 1000);
}
ask();
"""


def live_page(title: str) -> bytes:
    """Returns the outer page as HTML."""
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<link rel="icon" href="data:,">
<title>{html.escape(title)}</title>
<style>{_STYLE}</style>
</head>
<body>
<header>
<span id="state">...</span>
<label><input type="checkbox" id="paused"> keep this page while I look at it</label>
</header>
<main></main>
<script>{_SCRIPT}</script>
</body>
</html>
""".encode()


def live_policy() -> str:
    """Returns the Content-Security-Policy of the outer page: it may ask its own server."""
    return (
        f"default-src 'none'; style-src '{_hash(_STYLE)}'; "
        f"script-src '{_hash(_SCRIPT)}'; connect-src 'self'; frame-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )


def inner_policy() -> str:
    """Returns what the policy of the inner page, in its head, does not say: where it may be."""
    return "connect-src 'none'; frame-ancestors 'self'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
