// Summary: what ran, on what, how it went, and what limited it.

const REPORT_DIR = 'MILLRACE_REPORT_DIR=runs/ python train.py\n\n# or\nstrategy = millrace.Strategy(report_dir="runs/")';
const PART_COLORS = {
  compute: "#12805f",
  data: "#4fb3ba",
  bubble: "#b3bac4",
  transfer: "#c9822b",
  compile: "#b8433f",
  planning: "#a5459b",
  other: "#8a5fb0",
};

function summaryTab(run) {
  return [
    damagedLines(run),
    failures(run),
    limitsOf(run),
    runFacts(run),
    element("div", { class: "pair" }, lossCurves(run), memoryInShort(run)),
    loopsTable(run),
    flightsOf(run),
  ];
}

function damagedLines(run) {
  const files = Object.entries(run.damaged);
  if (!files.length) return null;
  const text = files.map(([file, count]) => `${plural(count, "line")} of ${file}`).join(", ");
  return element("p", { class: "warning" }, `Damaged and left out: ${text}. A run that was killed may leave a broken last line.`);
}

function failures(run) {
  return run.loops
    .filter((loop) => ["failed", "interrupted", "killed"].includes(loop.outcome))
    .slice(-3)
    .map((loop) =>
      element("p", { class: "warning" }, `Loop ${loop.number}, ${loop.mode} of `, element("bdi", {}, loop.model), ` ${loop.outcome === "failed" ? "" : "was "}${loop.outcome}`, loop.outcome === "killed" ? `; its last record is of ${dateText(number(loop.ended))}` : null, loop.error ? [": ", element("bdi", {}, loop.error)] : "."),
    );
}

function limitsOf(run) {
  const limits = run.limits;
  if (!limits || !(limits.wall_seconds > 0)) {
    return section("What limited it", "", empty("Nothing has run yet", "The time of fit, evaluate and predict is divided here, once they have run."));
  }
  const parts = Object.entries(limits.seconds)
    .map(([name, value]) => ({ name, value: number(value), color: PART_COLORS[name] ?? "#98a2ae" }))
    .filter((part) => part.value > 0);
  return section(
    "What limited it",
    `${secondsText(limits.wall_seconds)} in fit, evaluate and predict`,
    shareBar(parts, sum(parts.map((part) => part.value)), secondsText),
    element("p", { class: "advice" }, limits.limit ? element("b", {}, limits.limit, ". ") : null, limits.advice),
    run.outcome.startsWith("running") ? element("p", { class: "note" }, "Until ", dateText(DATA.written), ". What became of it since then: ", element("code", {}, `millrace report ${run.path}`)) : null,
  );
}

function runFacts(run) {
  const first = run.processes[0];
  if (!first) {
    return section("Run", "", empty("No process has left a record", "It is the first line that a run writes.", REPORT_DIR));
  }
  const largest = run.loops.reduce((best, loop) => (!best || loop.parameters > best.parameters ? loop : best), null);
  const latest = [...new Map(run.processes.map((each) => [each.process, each])).values()];
  const hosts = [...new Set(run.processes.map((each) => each.host))];
  const devices = latest.flatMap((each) => each.devices);
  return section(
    "Run",
    "",
    facts([
      largest && ["model", element("bdi", {}, largest.model)],
      largest && ["parameters", countText(largest.parameters), exactText(largest.parameters)],
      largest && ["stages", exactText(Math.max(...run.loops.map((loop) => loop.stages)))],
      largest && ["replicas", exactText(Math.max(...run.loops.map((loop) => loop.replicas)))],
      ["platform", first.platform],
      ["devices", exactText(devices.length), devices.join(", ")],
      ["processes", exactText(Math.max(first.processes, latest.length))],
      ["began", dateText(number(first.began))],
    ]),
    element(
      "dl",
      { class: "pairs" },
      first.script ? [element("dt", {}, "program"), element("dd", {}, element("code", {}, first.script))] : null,
      [element("dt", {}, hosts.length > 1 ? "hosts" : "host"), element("dd", {}, `${hosts.slice(0, 8).join(", ")}, ${plural(first.cores, "core")} each process`)],
      devices.length ? [element("dt", {}, "devices"), element("dd", {}, devices.slice(0, 16).join(", ") + (devices.length > 16 ? ` and ${devices.length - 16} more` : ""))] : null,
      Object.keys(first.versions).length
        ? [element("dt", {}, "versions"), element("dd", {}, Object.entries(first.versions).map(([name, version]) => `${name} ${version}`).join(", "))]
        : null,
    ),
  );
}

// The losses of the loop with most epochs; other loops can be chosen.
function lossCurves(run) {
  const loops = run.epochs;
  if (!loops.length) {
    return section("Losses", "", empty("No epoch has ended", "Every epoch of fit leaves what Keras logs: losses, metrics, the learning rate."));
  }
  const first = loops.reduce((best, each, k) => (each.epochs.count > loops[best].epochs.count ? k : best), 0);
  const host = element("div");
  const show = (k) => fill(host, epochCurves(loops[k]));
  show(first);
  const names = loops.map((each) => `loop ${each.loop}${each.process ? ` of process ${each.process}` : ""} · ${plural(each.epochs.count, "epoch")}`);
  return section("Epochs", "", loops.length > 1 ? select("Loop", names, first, show) : null, host);
}

function isLoss(name) {
  return /loss/i.test(name);
}

function epochCurves(loop) {
  const logs = loop.logs.map(([name, values]) => ({ name, values: column(values) }));
  const losses = logs.filter((log) => isLoss(log.name));
  const others = logs.filter((log) => !isLoss(log.name));
  const epochs = column(loop.epochs);
  const chart = (shown, name, height) =>
    shown.length
      ? curves({ name, x: epochs, xName: "epoch", xText: exactText, yName: shown.length === 1 ? shown[0].name : name.split(" ")[0].toLowerCase(), series: shown.slice(0, 8).map((log, k) => ({ ...log, color: COLORS[k % COLORS.length] })), height, legend: true })
      : null;
  return element("div", {}, chart(losses, "Losses by epoch", 210), others.length ? [element("h3", {}, "Metrics"), others.length > 3 ? metricChoice(others, epochs) : chart(others.slice(0, 3), "Metrics by epoch", 150)] : null);
}

// Metrics differ in scale, so one at a time where there are many.
function metricChoice(logs, epochs) {
  const host = element("div");
  const show = (k) =>
    fill(host, curves({ name: logs[k].name, x: epochs, xName: "epoch", xText: exactText, yName: logs[k].name, series: [{ ...logs[k], color: COLORS[1] }], height: 150 }));
  show(0);
  return [select("Metric", logs.map((log) => log.name), 0, show), host];
}

function memoryInShort(run) {
  const profiles = run.memory.profiles.filter((profile) => !profile.is_trial);
  if (!profiles.length) return section("Memory", "", empty("No program has left a memory profile", FILLS_MEMORY));
  return section("Memory at the peak", element("a", { href: fragmentOf("memory") }, "by program point"), peaks(profiles.slice(0, 12)));
}

function loopsTable(run) {
  if (!run.loops.length) {
    return section("Loops", "", empty("No loop has begun", "A call of fit, evaluate or predict, or of a loop of your own, makes a line here."));
  }
  const atLeast = (l, text) => (/running|killed/.test(l.outcome) ? "≥ " : "") + text;
  const columns = [
    { name: "loop", value: (l) => (l.process ? `${l.number} of process ${l.process}` : l.number), right: true },
    { name: "model", value: (l) => l.model },
    { name: "mode", value: (l) => l.mode },
    { name: "outcome", value: (l) => l.outcome, cell: (l) => element("span", { class: `outcome ${l.outcome}` }, l.outcome) },
    { name: "began", value: (l) => number(l.began), text: (l) => dateText(number(l.began)) },
    { name: "time", value: (l) => number(l.seconds), unit: "s", text: (l) => (number(l.seconds) > 0 ? atLeast(l, secondsText(number(l.seconds))) : "–"), right: true },
    { name: "epochs", value: (l) => l.epochs, text: (l) => atLeast(l, exactText(l.epochs)), right: true },
    { name: "steps", value: (l) => l.steps, text: (l) => atLeast(l, exactText(l.steps)), right: true },
    { name: "steps/s", value: (l) => rateOf(l), text: (l) => (rateOf(l) > 0 ? valueText(rateOf(l)) : "–"), right: true },
    { name: "compiling", value: (l) => number(l.compile_seconds), unit: "s", text: (l) => secondsText(number(l.compile_seconds)), right: true },
    { name: "waiting for data", value: (l) => number(l.wait_seconds), unit: "s", text: (l) => secondsText(number(l.wait_seconds)), right: true },
  ];
  const longest = longestLoop(run);
  return section(
    "Loops",
    run.loops_in_all > run.loops.length ? `the last ${exactText(run.loops.length)} of ${exactText(run.loops_in_all)}` : "",
    table(columns, run.loops, { name: "Loops", shown: 20, filter: run.loops.length > 20 ? "Filter by model, mode or outcome" : null }),
    Object.keys(longest.options).length ? element("details", {}, element("summary", {}, `Options of loop ${longest.number}, the longest`), optionsList(longest.options)) : null,
  );
}

function optionsList(options) {
  return element("dl", { class: "pairs" }, Object.entries(options).map(([name, value]) => [element("dt", {}, name), element("dd", {}, element("code", {}, value))]));
}

function rateOf(loop) {
  const seconds = number(loop.seconds);
  return seconds > 0 ? loop.steps / seconds : NaN;
}

function flightsOf(run) {
  if (!run.flights.length) return null;
  return section(
    "Values that were not finite",
    "",
    run.flights.map((flight) => element("p", { class: "warning" }, `${dateText(number(flight.time))}: `, element("bdi", {}, flight.text), ". Recorded in ", element("code", {}, flight.directory), ".")),
  );
}
