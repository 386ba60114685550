// Compilation: what was compiled when, why, and how to avoid it.

const PHASES = [
  ["trace_seconds", "tracing", "#4fb3ba"],
  ["lower_seconds", "lowering", "#e0a84f"],
  ["compile_seconds", "compiling or reading", null],
];

function compilationTab(run) {
  const records = run.compilations;
  if (!records.length) {
    return [section("Compilation", "", empty("Nothing was compiled", "Every executable leaves a line with its time and the reason why it was made.", REPORT_DIR))];
  }
  const made = records.filter((record) => record.origin !== "switch");
  const by = grouped(made, (record) => record.origin);
  const seconds = (list) => sum(list.map(secondsOf));
  return [
    section(
      "Compilation",
      run.compilations_in_all > records.length ? `the last ${exactText(records.length)} of ${exactText(run.compilations_in_all)}` : "",
      facts([
        ["executables", exactText(made.length)],
        ...[...by].map(([origin, list]) => [{ compiled: "compiled", cache: "from the cache", shared: "shared with an equal one", loaded: "loaded" }[origin] ?? origin, exactText(list.length)]),
        ["time of all, added up", secondsText(seconds(made))],
        ["fit, evaluate and predict waited", secondsText(number(run.limits.seconds.compile) + number(run.limits.seconds.planning))],
        ["compiled again", exactText(made.filter((record) => record.is_recompilation).length), "programs that this model has run in another form"],
        made.some((record) => record.code_bytes) ? ["machine code", bytesText(sum(made.map((record) => record.code_bytes)))] : null,
      ]),
      element("p", { class: "note" }, "The wait is shorter than the sum where programs are compiled at the same time, or before, and longer where the search for what fits is part of it. The Summary has it as compile and planning."),
      compilationTimeline(made),
    ),
    section("All compilations", "the newest first", compilationTable(records)),
  ];
}

function secondsOf(record) {
  return number(record.trace_seconds) + number(record.lower_seconds) + number(record.compile_seconds);
}

function compilationTimeline(records) {
  const timed = records.filter((record) => number(record.began) > 0 && Number.isFinite(secondsOf(record)));
  if (!timed.length) return null;
  const first = Math.min(...timed.map((record) => record.began));
  const rows = [...grouped(timed, (record) => record.program)].slice(0, 40).map(([program, list]) => compilationRow(program, list, first));
  const last = Math.max(...timed.map((record) => record.began - first + secondsOf(record)));
  const view = new View(0, last);
  const gantt = new Gantt(rows, view, { name: "Compilations over time", most: 360, labels: 190 });
  const origins = [...new Set(timed.map((record) => record.origin))];
  return [
    element("div", { class: "legend" }, PHASES.slice(0, 2).map(([, name, background]) => swatch(background, name)), origins.map((origin) => swatch(ORIGIN_COLORS[origin] ?? "#98a2ae", origin))),
    zoomBar(view, "part to part"),
    gantt.host,
    gantt.status,
  ];
}

function compilationRow(program, records, first) {
  const origins = Object.keys(ORIGIN_COLORS);
  const styles = [
    { name: "tracing", color: PHASES[0][2] },
    { name: "lowering", color: PHASES[1][2] },
    ...origins.map((origin) => ({ name: origin, color: ORIGIN_COLORS[origin] })),
  ].map((style) => ({ ...style, ink: inkOn(style.color) }));
  const starts = [];
  const ends = [];
  const kinds = [];
  const items = [];
  for (const record of records) {
    let time = record.began - first;
    PHASES.forEach(([field], phase) => {
      const seconds = number(record[field]);
      if (!(seconds > 0)) return;
      starts.push(time);
      ends.push((time += seconds));
      kinds.push(phase < 2 ? phase : 2 + Math.max(origins.indexOf(record.origin), 0));
      items.push({ record, phase });
    });
  }
  return {
    name: program,
    title: program,
    height: 18,
    idle: true,
    clips: true,
    styles,
    lanes: lanesOf(Float64Array.from(starts), Float64Array.from(ends), Uint8Array.from(kinds), styles.length, 3),
    label: (k) => (items[k].phase === 2 ? items[k].record.origin : PHASES[items[k].phase][1]),
    tip: (k) => [
      items[k].record.program,
      [
        ["model", items[k].record.model],
        ["batch", items[k].record.batch],
        ["origin", items[k].record.origin, ORIGIN_COLORS[items[k].record.origin]],
        ...PHASES.map(([field, name]) => [name, secondsText(number(items[k].record[field]))]),
        ["cause", items[k].record.cause],
      ],
    ],
  };
}

function compilationTable(records) {
  const rows = records.map((record, k) => ({ ...record, order: k, time: secondsOf(record) }));
  return table(
    [
      { name: "began", value: (r) => number(r.began) || r.order, text: (r) => dateText(number(r.began)) },
      { name: "program", value: (r) => r.program, text: (r) => [r.program, r.model, r.batch].filter(Boolean).join(" · "), middle: true, cell: (r) => [element("bdi", {}, r.program), r.batch ? element("div", { class: "note" }, element("bdi", {}, r.model), " · ", r.batch) : null] },
      { name: "origin", value: (r) => r.origin, cell: (r) => [swatch(ORIGIN_COLORS[r.origin] ?? "#98a2ae", r.origin), r.is_recompilation ? element("div", { class: "note" }, "again") : null, r.count > 1 ? element("div", { class: "note" }, `${exactText(r.count)} times`) : null] },
      { name: "time", value: (r) => r.time, unit: "s", text: (r) => (r.origin === "switch" ? "–" : secondsText(r.time)), right: true },
      { name: "peak", value: (r) => r.peak_bytes, unit: "bytes", text: (r) => (r.peak_bytes ? bytesText(r.peak_bytes) : "–"), right: true },
      { name: "code", value: (r) => r.code_bytes, unit: "bytes", text: (r) => (r.code_bytes ? bytesText(r.code_bytes) : "–"), right: true },
      { name: "cause", value: (r) => r.cause, wide: true, cell: (r) => [element("bdi", {}, r.cause || "–"), r.remedy ? element("div", { class: "remedy" }, r.remedy) : null], text: (r) => `${r.cause} ${r.remedy}` },
    ],
    rows,
    { name: "Compilations", sorted: 0, filter: "Filter by program, batch or cause" },
  );
}
