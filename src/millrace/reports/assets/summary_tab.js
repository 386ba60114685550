// Summary: what ran, on what, how it went.

function summaryTab(run) {
  return [devices(run), loopsTable(run), damagedLines(run)];
}

function devices(run) {
  const first = run.processes[0];
  if (!first) {
    return section("Run", "", empty("No process has left a record", "It is the first line that a run writes."));
  }
  return section(
    "Run",
    "",
    facts([
      ["platform", first.platform],
      ["processes", exactText(first.processes)],
      ["host", first.host],
      ["began", dateText(first.began)],
    ]),
  );
}

function loopsTable(run) {
  if (!run.loops.length) {
    return section(
      "Loops",
      "",
      empty("No loop has begun", "A call of fit, evaluate or predict, or of a loop of your own, makes a line here."),
    );
  }
  return section(
    "Loops",
    "",
    element(
      "table",
      {},
      element("thead", {}, element("tr", {}, ["loop", "model", "mode", "outcome", "time", "steps"].map((name) => element("th", {}, name)))),
      element(
        "tbody",
        {},
        run.loops.map((loop) =>
          element("tr", {}, [loop.number, loop.model, loop.mode, loop.outcome, secondsText(number(loop.seconds)), exactText(loop.steps)].map((value) => element("td", {}, String(value)))),
        ),
      ),
    ),
  );
}

function damagedLines(run) {
  const files = Object.entries(run.damaged);
  if (!files.length) return null;
  const text = files.map(([file, count]) => `${plural(count, "line")} of ${file}`).join(", ");
  return element("p", { class: "warning" }, `Damaged and left out: ${text}.`);
}
