// Trace: which device group did what, when, and what it waited for.

const FILLS_TRACE = "A run traces a few updates while it has a report directory: of a pipeline every task, of a model in one piece its executions.";

function traceTab(run) {
  const { traces, typical, in_all } = run.traces;
  if (!traces.length) return [section("Trace", "", empty("Nothing was traced", FILLS_TRACE, REPORT_DIR))];
  const shown = { twin: true, idle: true };
  let chosen = typical;
  const host = element("div");
  const show = () => fill(host, traceView(traces[chosen], shown));
  const names = traces.map(traceName);
  show();
  return [
    section(
      "Execution trace",
      in_all > traces.length ? `${exactText(traces.length)} of ${exactText(in_all)} traces: that of median length, and the latest` : "",
      element(
        "div",
        { class: "bar" },
        select("Trace", names, chosen, (k) => ((chosen = k), show())),
        traces.some((trace) => trace.twin) && toggle("Simulated twin", shown, "twin", show),
        traces.some((trace) => trace.idle) && toggle("Idle time with reasons", shown, "idle", show),
        perfettoButton(run),
      ),
      host,
    ),
  ];
}

// The one that stands for the run; null if nothing was traced.
function typicalTrace(run) {
  return run.traces.traces[run.traces.typical] || null;
}

function traceName(trace) {
  const epoch = trace.epoch ? ` · epoch ${trace.epoch}` : "";
  return `${trace.model} · ${trace.mode}${epoch} · update ${trace.update} · ${secondsText(trace.end || lastOf(trace))}`;
}

function lastOf(trace) {
  return Math.max(trace.last, trace.twin ? trace.twin.end : 0);
}

function toggle(text, shown, name, show) {
  const box = element("input", { type: "checkbox", checked: shown[name], onchange: (event) => ((shown[name] = event.target.checked), show()) });
  return element("label", { class: "control" }, box, element("span", {}, text));
}

function traceView(trace, shown, view = new View(Math.min(trace.first, 0), lastOf(trace))) {
  const rows = traceRows(trace, shown);
  const gantt = new Gantt(rows, view, { name: `Trace of update ${trace.update} of ${trace.model}` });
  return [
    facts([
      [trace.end ? "update" : "call", secondsText(trace.end || lastOf(trace))],
      trace.bubble !== null ? ["bubble", shareText(trace.bubble), "idle share of the time of all device groups"] : null,
      trace.twin ? ["simulated", secondsText(trace.twin.end)] : null,
      trace.twin && trace.twin.bubble !== null ? ["its bubble", shareText(trace.twin.bubble)] : null,
      trace.end ? ["tasks", exactText(trace.tasks.gap.count)] : null,
      trace.schedule ? ["schedule", trace.schedule] : null,
    ]),
    trace.left_out ? element("p", { class: "warning" }, `${plural(trace.left_out, "span")} left out: more than a page holds, or without a time.`) : null,
    traceLegend(trace),
    zoomBar(view),
    gantt.host,
    gantt.status,
    shown.idle && trace.idle ? idleReasons(trace) : null,
  ];
}

function traceLegend(trace) {
  return element(
    "div",
    { class: "legend" },
    trace.tasks.kinds.map((kind) => swatch(styleOf(kind).color, `${kind} ${styleOf(kind).name}`)),
    activityKinds(trace).map(([name, background]) => swatch(background, name)),
    trace.tasks.kinds.length ? element("span", { class: "swatch" }, element("i", { class: "hatched" }), "idle") : null,
  );
}

function zoomBar(view, steps = "task to task") {
  const button = (text, label, action) => element("button", { type: "button", "aria-label": label, title: label, onclick: action }, text);
  return element(
    "div",
    { class: "bar zoom" },
    button("+", "Zoom in (W)", () => view.zoom(0.5)),
    button("−", "Zoom out (S)", () => view.zoom(2)),
    button("‹", "Earlier (A)", () => view.pan(-0.3)),
    button("›", "Later (D)", () => view.pan(0.3)),
    button("Everything", "Show everything (0, or a double click)", () => view.whole()),
    element("span", { class: "note" }, `Wheel or drag to zoom, Shift to pan, a click chooses, arrow keys go from ${steps}.`),
  );
}

// Idle time by its reasons, all groups together.
function idleReasons(trace) {
  const lengths = column(trace.idle.length);
  const reasons = column(trace.idle.reason);
  const texts = column(trace.idle.reasons);
  const totals = new Map();
  for (let i = 0; i < lengths.length; i++) {
    const reason = texts[reasons[i]].replace(/ on micro-batch #/, "");
    const now = totals.get(reason) ?? { reason, seconds: 0, slots: 0 };
    now.seconds += lengths[i] * trace.tick;
    now.slots += 1;
    totals.set(reason, now);
  }
  const rows = [...totals.values()].sort((a, b) => b.seconds - a.seconds);
  if (!rows.length) return null;
  const all = sum(rows.map((row) => row.seconds));
  return element(
    "details",
    { open: rows.length < 8 },
    element("summary", {}, `Idle time by reason: ${secondsText(all)} of all device groups`),
    table(
      [
        { name: "time", value: (r) => r.seconds, unit: "s", text: (r) => secondsText(r.seconds), right: true },
        { name: "share", value: (r) => r.seconds / all, text: (r) => shareText(r.seconds / all), right: true },
        { name: "slots", value: (r) => r.slots, text: (r) => exactText(r.slots), right: true },
        { name: "reason", value: (r) => r.reason, wide: true },
      ],
      rows,
      { name: "Idle time by reason", shown: 12 },
    ),
  );
}

function perfettoButton(run) {
  const box = element(
    "div",
    { class: "help", hidden: true },
    element("p", {}, "Write the traces as a file that Perfetto and Chrome's tracing page open:"),
    element("pre", {}, `millrace report ${run.path} --perfetto trace.json`),
  );
  const button = element("button", { type: "button", "aria-expanded": "false" }, "Perfetto file …");
  button.addEventListener("click", () => {
    box.hidden = !box.hidden;
    button.setAttribute("aria-expanded", String(!box.hidden));
  });
  return [button, box];
}
