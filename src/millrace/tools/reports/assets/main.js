// Puts the page together: head, tabs, and the tab that the address names: #trace, or #2/trace for
// the second of two runs.

const TABS = [
  ["summary", "Summary", summaryTab, "reports.md#what-limited-a-run"],
  ["memory", "Memory", memoryTab, "reports.md#memory-liveness"],
  ["trace", "Trace", traceTab, "reports.md#execution-traces"],
  ["operations", "Operations", operationsTab, "reports.md#operations"],
  ["compilation", "Compilation", compilationTab, "recompilation.md"],
  ["feeds", "Feeds", feedsTab, "infeed.md"],
  ["tensors", "Tensors", tensorsTab, "tensor_statistics.md"],
  ["compare", "Compare", compareTab, "reports.md#the-page"],
];
const here = { tab: DATA.runs.length > 1 ? "compare" : "summary", run: 0 };
const RELOAD_AFTER = 30000; // milliseconds without a touch
const panel = element("main", { id: "panel", role: "tabpanel", tabindex: "-1" });
let areColumnsHere = false;

function readFragment() {
  const [, run, tab] = /^#(?:(\d+)\/)?(\w*)/.exec(location.hash) ?? [];
  if (TABS.some(([name]) => name === tab)) here.tab = tab;
  here.run = Math.min(Math.max(Number(run ?? 1) - 1, 0), DATA.runs.length - 1);
}

function fragmentOf(tab, run = here.run) {
  return run ? `#${run + 1}/${tab}` : `#${tab}`;
}

function goTo(tab, run = here.run) {
  history.replaceState(null, "", fragmentOf(tab, run));
  readFragment();
  drawHead();
  drawTab();
}

function drawHead() {
  const run = DATA.runs[here.run];
  document.getElementById("head").replaceChildren(
    element(
      "div",
      { class: "title" },
      element("span", { class: "brand" }, "millrace"),
      element("h1", { title: run.path }, DATA.runs.length > 1 && here.tab === "compare" ? DATA.runs.flatMap((each, k) => [k ? element("span", { class: "note" }, " and ") : null, element("bdi", {}, each.name)]) : element("bdi", {}, run.name)),
      here.tab === "compare" && DATA.runs.length > 1 ? null : outcomeOf(run),
      DATA.runs.length > 1 && here.tab !== "compare" ? choice("Run", DATA.runs.map((each) => each.name), here.run, (k) => goTo(here.tab, k)) : null,
      element("span", { class: "note written" }, `written ${dateText(DATA.written)}`),
      docsLink(TABS.find(([name]) => name === here.tab)),
    ),
    element(
      "div",
      { role: "tablist", "aria-label": "Parts of the report", onkeydown: turnTab },
      TABS.map(([name, title]) =>
        element(
          "button",
          {
            type: "button",
            role: "tab",
            id: `tab-${name}`,
            "aria-selected": String(name === here.tab),
            "aria-controls": "panel",
            tabindex: name === here.tab ? "0" : "-1",
            onclick: () => goTo(name),
          },
          title,
        ),
      ),
    ),
  );
  panel.setAttribute("aria-labelledby", `tab-${here.tab}`);
  document.getElementById(`tab-${here.tab}`).scrollIntoView({ block: "nearest", inline: "nearest" });
}

// The one address that a click leaves this file for.
function docsLink([, title, , page]) {
  return DATA.docs ? element("a", { class: "note", href: DATA.docs + page, title: `What ${title} shows`, target: "_blank", rel: "noreferrer" }, "Documentation") : null;
}

// Of a program that runs, it is true of one moment only: it may be killed after it.
function outcomeOf(run) {
  const text = { running: `running at ${dateText(DATA.written)}`, "": "no loop yet" }[run.outcome] ?? run.outcome;
  const seen = run.outcome.endsWith("killed") ? `, last seen ${dateText(number(run.seen))}` : "";
  return element("span", { class: `outcome ${run.outcome}` }, text, seen);
}

// Arrow keys go from tab to tab.
function turnTab(event) {
  const now = TABS.findIndex(([name]) => name === here.tab);
  const next = { ArrowRight: now + 1, ArrowLeft: now - 1, Home: 0, End: TABS.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  goTo(TABS[(next + TABS.length) % TABS.length][0]);
  document.getElementById(`tab-${here.tab}`).focus();
}

function drawTab() {
  leaveTab();
  if (!areColumnsHere) return;
  const [, , make] = TABS.find(([name]) => name === here.tab);
  try {
    fill(panel, make(DATA.runs[here.run]));
  } catch (error) {
    // One record that is not as expected shall not hide the other tabs.
    console.error(error);
    panel.replaceChildren(section("", "", empty("This part cannot be shown", String(error))));
  }
  panel.dataset.tab = here.tab;
}

function foot() {
  const text = document.getElementById("licence").content.textContent.trim();
  return element(
    "footer",
    {},
    element("p", {}, "This file holds all that it shows, and loads nothing."),
    element("details", {}, element("summary", {}, "Curves by uPlot, under the MIT licence"), element("pre", {}, text)),
  );
}

// The page of a run that has not ended is written anew, and then loaded, unless somebody is reading it.
function reloadWhileItRuns() {
  if (DATA.runs.length > 1 || DATA.runs[0].outcome !== "running") return;
  let timer;
  const wait = () => {
    clearTimeout(timer);
    timer = setTimeout(() => location.reload(), RELOAD_AFTER);
  };
  for (const kind of ["pointermove", "wheel", "keydown"]) window.addEventListener(kind, wait, { passive: true });
  wait();
}

function begin() {
  readFragment();
  reloadWhileItRuns();
  document.getElementById("page").replaceChildren(element("header", { id: "head" }), panel, foot(), tooltip);
  drawHead();
  panel.replaceChildren(element("p", { class: "note" }, "Reading the numbers …"));
  window.addEventListener("hashchange", () => {
    readFragment();
    drawHead();
    drawTab();
  });
  loadColumns().then(
    () => {
      areColumnsHere = true;
      drawTab();
      document.documentElement.dataset.ready = Math.round(performance.now());
    },
    (error) => panel.replaceChildren(section("", "", empty("The numbers of this page cannot be read", String(error.message ?? error)))),
  );
}

begin();
