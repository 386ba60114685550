// Compare: two runs side by side, with equal scales.

function compareTab() {
  const [first, second] = DATA.runs;
  if (!second) {
    return [section("Compare", "", empty("There is one run on this page", "Two runs are compared on a page of both.", `millrace report --compare ${first.path} OTHER`))];
  }
  return [optionsCompared(first, second), numbersCompared(first, second), lossesCompared(first, second), memoryCompared(first, second), tracesCompared(first, second)];
}

function longestLoop(run) {
  return run.loops.reduce((best, loop) => (!best || number(loop.seconds) > number(best.seconds) ? loop : best), null);
}

function optionsCompared(first, second) {
  const [a, b] = [first, second].map((run) => ({ ...longestLoop(run)?.options, ...prefixed(run.processes[0]?.versions) }));
  const names = [...new Set([...Object.keys(a), ...Object.keys(b)])];
  const rows = names.filter((name) => a[name] !== b[name]).map((name) => [name, a[name] ?? "–", b[name] ?? "–"]);
  const content = rows.length
    ? table(
        [
          { name: "option", value: (row) => row[0] },
          { name: first.name, value: (row) => row[1], cell: (row) => element("code", {}, row[1]) },
          { name: second.name, value: (row) => row[2], cell: (row) => element("code", {}, row[2]) },
        ],
        rows,
        { name: "Options that differ" },
      )
    : element("p", { class: "note" }, names.length ? `All ${exactText(names.length)} options and versions are equal.` : "Neither run has recorded its options.");
  return section("Options that differ", "of the longest loops", content);
}

function prefixed(versions = {}) {
  return Object.fromEntries(Object.entries(versions).map(([name, version]) => [`version of ${name}`, version]));
}

function numbersCompared(first, second) {
  const figures = (run) => {
    const loop = longestLoop(run);
    const trace = typicalTrace(run);
    const ran = run.memory.profiles.filter((profile) => !profile.is_trial);
    const made = run.compilations.filter((record) => record.origin !== "switch");
    const none = (value, has) => (has ? value : NaN);
    return {
      "time of the longest loop": [number(loop?.seconds), secondsText],
      "steps per second": [loop ? rateOf(loop) : NaN, valueText],
      "waiting for data": [number(loop?.wait_seconds), secondsText],
      "compiling, added up": [none(sum(made.map(secondsOf)), made.length), secondsText],
      executables: [none(made.length, made.length), exactText],
      "memory at the peak": [none(Math.max(...ran.map((profile) => profile.peak)), ran.length), bytesText],
      "FLOPs of the largest program": [none(Math.max(...run.operations.map((each) => sum(each.groups.map((group) => number(group[4]))))), run.operations.length), flopsText],
      "time of an update": [trace?.end || NaN, secondsText],
      bubble: [trace && trace.bubble !== null ? trace.bubble : NaN, shareText],
      ...Object.fromEntries(Object.entries(lastLogs(run)).map(([name, value]) => [`last ${name}`, [value, valueText]])),
    };
  };
  const [a, b] = [figures(first), figures(second)];
  const nothing = [NaN, valueText];
  const rows = [...new Set([...Object.keys(a), ...Object.keys(b)])]
    .map((name) => ({ name, a: (a[name] ?? nothing)[0], b: (b[name] ?? nothing)[0], text: (a[name] ?? b[name])[1] }))
    .filter((row) => !Number.isNaN(row.a) || !Number.isNaN(row.b));
  if (!rows.length) return section("Numbers", "", empty("Neither run has numbers yet", "They come from loops, epochs and programs."));
  const text = (row, value) => (Number.isNaN(value) ? "–" : row.text(value));
  return section(
    "Numbers",
    "",
    table(
      [
        { name: "", text: (row) => row.name },
        { name: first.name, text: (row) => text(row, row.a), right: true },
        { name: second.name, text: (row) => text(row, row.b), right: true },
        { name: "ratio", text: (row) => (row.a !== 0 && Number.isFinite(row.b / row.a) ? `${(row.b / row.a).toFixed(2)}×` : "–"), right: true },
      ],
      rows,
      { name: "Numbers of both runs" },
    ),
  );
}

function longestEpochs(run) {
  return run.epochs.reduce((best, each) => (!best || each.epochs.count > best.epochs.count ? each : best), null);
}

function lastLogs(run) {
  const loop = longestEpochs(run);
  if (!loop) return {};
  return Object.fromEntries(loop.logs.slice(0, 12).map(([name, values]) => [name, column(values)[values.count - 1]]));
}

function lossesCompared(first, second) {
  const loops = [first, second].map(longestEpochs);
  const names = [...new Set(loops.flatMap((loop) => (loop ? loop.logs.map(([name]) => name) : [])))];
  if (!names.length) return section("Epochs", "", empty("Neither run has ended an epoch", "Losses and metrics of both lie over one another here."));
  const host = element("div");
  const show = (k) => fill(host, overlaidLogs([first, second], loops, names[k]));
  const loss = Math.max(names.findIndex(isLoss), 0);
  show(loss);
  return section("Epochs", "", element("div", { class: "bar" }, select("Log", names, loss, show)), host);
}

function overlaidLogs(runs, loops, name) {
  const found = loops.map((loop) => {
    const log = loop?.logs.find((each) => each[0] === name);
    return log ? { epochs: column(loop.epochs), values: column(log[1]) } : null;
  });
  const x = Float64Array.from(new Set(found.flatMap((each) => (each ? Array.from(each.epochs) : [])))).sort();
  const at = new Map(Array.from(x, (epoch, k) => [epoch, k]));
  const series = found.flatMap((each, k) => {
    if (!each) return [];
    const values = new Array(x.length).fill(undefined);
    each.epochs.forEach((epoch, i) => (values[at.get(epoch)] = each.values[i]));
    return [{ name: runs[k].name, values, color: COLORS[k] }];
  });
  return element("div", {}, element("div", { class: "legend" }, series.map((each) => swatch(each.color, element("bdi", {}, each.name)))), overlaid(series, x, { name, yName: name, xName: "epoch", xText: exactText, height: 240 }));
}

function sideBySide(runs, content) {
  return element("div", { class: "pair" }, runs.map((run, k) => section(element("bdi", {}, run.name), "", content(run, k))));
}

function memoryCompared(first, second) {
  const runs = [first, second];
  const profiles = runs.map((run) => run.memory.profiles.filter((profile) => !profile.is_trial));
  if (!profiles.some((each) => each.length)) return section("Memory", "", empty("Neither run has a memory profile", FILLS_MEMORY));
  const largest = (list) => list.reduce((best, each) => (!best || each.peak > best.peak ? each : best), null);
  const programs = [...new Set(profiles.flat().map((profile) => profile.program))];
  const start = programs.indexOf(largest(profiles.flat()).program);
  const host = element("div");
  const show = (k) => {
    const chosen = profiles.map((list) => largest(list.filter((profile) => profile.program === programs[k])));
    const most = Math.max(...chosen.map((profile) => profile?.peak ?? 0));
    fill(host, 
      sideBySide(runs, (_, run) => {
        const profile = chosen[run];
        if (!profile) return empty("Not in this run", `It has no profile of ${programs[k]}.`);
        return [facts([["peak", bytesText(profile.peak)], ["reserved", bytesText(profile.requirement)]]), profile.length ? memoryChart(profile, most, 240) : null];
      }),
    );
  };
  show(start);
  return element("div", { class: "stacked" }, section("Memory", "one scale for both", roleLegend(), element("div", { class: "bar" }, select("Program", programs, start, show))), host);
}

function tracesCompared(first, second) {
  const runs = [first, second];
  const traces = runs.map((run) => (typicalTrace(run)));
  if (!traces.some((trace) => trace)) return section("Timeline", "", empty("Neither run has a trace", FILLS_TRACE));
  const from = Math.min(...traces.filter((trace) => trace).map((trace) => Math.min(trace.first, 0)));
  const to = Math.max(...traces.filter((trace) => trace).map(lastOf));
  const view = new View(from, to);
  return section(
    "Timeline",
    "the updates of median length, one scale for both",
    zoomBar(view),
    runs.map((run, k) => {
      const trace = traces[k];
      if (!trace) return [element("h3", {}, element("bdi", {}, run.name)), empty("No trace", FILLS_TRACE)];
      const gantt = new Gantt(traceRows(trace, { twin: false, idle: true }), view, { name: `Timeline of ${run.name}`, most: 340 });
      const note = `${secondsText(trace.end || lastOf(trace))}${trace.bubble === null ? "" : `, bubble ${shareText(trace.bubble)}`}`;
      return [element("h3", {}, element("bdi", {}, run.name), element("span", { class: "note" }, note)), gantt.host, gantt.status];
    }),
  );
}
