// Operations: FLOPs, bytes and seconds by layer and by pass.

const MEASURES = [
  { name: "Time", at: 6, text: secondsText },
  { name: "FLOPs", at: 4, text: flopsText },
  { name: "Bytes", at: 5, text: bytesText },
  { name: "Operations", at: 3, text: exactText },
];
const GROUPINGS = [
  { name: "By layer", key: (group) => group[0] },
  { name: "By purpose", key: (group) => group[1] },
  { name: "By pass", key: (group) => group[2] || "no pass" },
];

function operationsTab(run) {
  const programs = [...wholeModes(run.operations), ...run.operations];
  if (!programs.length) {
    return [section("Operations", "", empty("No operations were counted", "A run counts those of every program that it compiles while it has a report directory. Times come from a trace of chosen executions.", REPORT_DIR))];
  }
  const weight = (program) => sum(program.groups.map((group) => number(group[6]) || 0)) || sum(program.groups.map((group) => number(group[4]))) * 1e-30;
  const first = programs.reduce((best, each, k) => (weight(each) > weight(programs[best]) ? k : best), 0);
  const host = element("div", { class: "stacked" });
  const show = (k) => fill(host, programView(programs[k]));
  show(first);
  return [
    section("Operations", "", element("div", { class: "bar" }, select("Program", programs.map((each) => `${each.program} · ${each.model}`), first, show))),
    host,
  ];
}

// Of each model and mode with several programs, one call of each as a whole.
function wholeModes(programs) {
  const latest = [...new Map(programs.map((each) => [`${each.program} ${each.model}`, each])).values()];
  const modes = grouped(
    latest.filter((each) => /^(train|test|predict)_/.test(each.program)),
    (each) => JSON.stringify([each.program.split("_")[0], each.model]),
  );
  return [...modes]
    .filter(([, list]) => list.length > 1)
    .map(([key, list]) => {
      const [mode, model] = JSON.parse(key);
      const groups = [...grouped(list.flatMap((each) => each.groups), (group) => JSON.stringify(group.slice(0, 3))).values()];
      const added = (same, at) => (same.every((group) => group[at] === null) ? null : sum(same.map((group) => number(group[at]) || 0)));
      return {
        program: `all of ${mode}, one call of each of ${plural(list.length, "program")}`,
        model,
        groups: groups.map((same) => [...same[0].slice(0, 3), ...[3, 4, 5, 6].map((at) => added(same, at))]),
        left_out: sum(list.map((each) => each.left_out)),
      };
    });
}

function programView(program) {
  const timed = program.groups.some((group) => group[6] !== null);
  const measures = MEASURES.filter((measure) => measure.at !== 6 || timed);
  const state = { measure: 0, grouping: 0 };
  const totals = Object.fromEntries(MEASURES.map((measure) => [measure.at, sum(program.groups.map((group) => number(group[measure.at]) || 0))]));
  const host = element("div");
  const show = () => fill(host, groupBars(program, measures[state.measure], GROUPINGS[state.grouping]));
  show();
  return [
    section(
      "",
      "",
      facts([
        ["FLOPs", flopsText(totals[4]), exactText(totals[4])],
        ["bytes read and written", bytesText(totals[5])],
        ["FLOP for each byte", totals[5] > 0 ? valueText(totals[4] / totals[5]) : "–"],
        program.steps ? ["steps", exactText(program.steps)] : null,
        timed ? ["time in operations", secondsText(totals[6])] : null,
        timed ? ["FLOPs per second", `${flopsText(totals[4] / totals[6])}/s`] : null,
        program.calls ? ["calls traced", exactText(program.calls)] : null,
        program.calls && number(program.overhead) > 0 ? ["cost of tracing", shareText(number(program.overhead)), "of the traced executions, against the one before them"] : null,
      ]),
      timed ? null : element("p", { class: "note" }, "Counts without times, which a run leaves with ", element("code", {}, "MILLRACE_REPORT_TRACE=2"), " in its environment."),
      element(
        "div",
        { class: "bar" },
        choice("Measure", measures.map((measure) => measure.name), 0, (k) => ((state.measure = k), show())),
        choice("Grouping", GROUPINGS.map((grouping) => grouping.name), 0, (k) => ((state.grouping = k), show())),
      ),
      host,
    ),
    section("All operations", "a row for each layer or purpose, and pass", operationsTable(program, timed)),
  ];
}

function groupBars(program, measure, grouping) {
  const rows = [...grouped(program.groups, grouping.key)]
    .map(([name, groups]) => ({
      name,
      value: sum(groups.map((group) => number(group[measure.at]) || 0)),
      parts: [...grouped(groups, (group) => group[2])].map(([kind, each]) => ({
        name: kind || "no pass",
        value: sum(each.map((group) => number(group[measure.at]) || 0)),
        color: passColor(kind),
      })),
    }))
    .sort((a, b) => b.value - a.value);
  const kinds = [...new Set(program.groups.map((group) => group[2]))];
  const left = rows.slice(24);
  return [
    element("div", { class: "legend" }, kinds.map((kind) => swatch(passColor(kind), kind || "no pass"))),
    bars(rows.slice(0, 24), measure.text),
    left.length ? element("p", { class: "note" }, `and ${plural(left.length, "more")} with ${measure.text(sum(left.map((row) => row.value)))}; the table has all`) : null,
  ];
}

function operationsTable(program, timed) {
  const right = (name, at, text, unit) => ({ name, unit, value: (g) => number(g[at]), text: (g) => (g[at] === null ? "–" : text(number(g[at]))), right: true });
  return [
    table(
      [
        { name: "layer or purpose", value: (g) => g[0] },
        { name: "role", value: (g) => g[1] },
        { name: "pass", value: (g) => g[2], cell: (g) => (g[2] ? swatch(passColor(g[2]), g[2]) : "–") },
        right("operations", 3, exactText),
        right("FLOPs", 4, flopsText),
        right("bytes", 5, bytesText),
        right("time", 6, secondsText, "s"),
      ],
      program.groups,
      { name: "Operations", sorted: timed ? 6 : 4, filter: "Filter by layer, role or pass" },
    ),
    program.left_out ? element("p", { class: "note" }, `${plural(program.left_out, "smaller row")} left out.`) : null,
  ];
}
