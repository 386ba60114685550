// Feeds: is there always a block ready? And the speed of the loop over time.

function feedsTab(run) {
  if (!run.feeds.length && !run.executions.length && !run.verdicts.length) {
    return [section("Feeds", "", empty("No loop has fed data to a device", "A run samples the queue of its infeed and the speed of its executions while it trains, evaluates or predicts.", REPORT_DIR))];
  }
  const keys = [...new Set([...run.executions, ...run.feeds].map(keyOfSeries))];
  const longest = keys.reduce((best, key, k) => (lengthOf(run, key) > lengthOf(run, keys[best]) ? k : best), 0);
  const host = element("div", { class: "stacked" });
  const show = (k) => fill(host, feedView(run, keys[k]));
  if (keys.length) show(longest);
  return [
    verdictsOf(run),
    keys.length > 1 ? section("", "", element("div", { class: "bar" }, select("Loop", keys.map(nameOfKey), longest, show))) : null,
    host,
  ];
}

function keyOfSeries(series) {
  return JSON.stringify([series.process, series.loop, series.mode]);
}

function nameOfKey(key) {
  const [process, loop, mode] = JSON.parse(key);
  return `loop ${loop} · ${mode}${process ? ` · process ${process}` : ""}`;
}

function lengthOf(run, key) {
  return sum([...run.executions, ...run.feeds].filter((each) => keyOfSeries(each) === key).map((each) => each.time.count));
}

function feedView(run, key) {
  const feed = run.feeds.find((each) => keyOfSeries(each) === key);
  const executions = run.executions.find((each) => keyOfSeries(each) === key);
  const began = Math.min(...[feed, executions].filter((each) => each).map((each) => column(each.time)[0]));
  return [executions ? executionCurves(executions, began) : null, feed ? feedCurves(feed, began) : null].filter((each) => each);
}

function since(times, began) {
  return Float64Array.from(times, (time) => time - began);
}

function ratio(over, under) {
  return Float64Array.from(over, (value, k) => (under[k] > 0 ? value / under[k] : NaN));
}

function executionCurves(series, began) {
  const x = since(column(series.time), began);
  const seconds = column(series.seconds);
  const total = sum(seconds);
  const part = (name, field, background) => ({ name, values: ratio(column(series[field]), seconds), color: background, text: shareText });
  const steps = sum(column(series.steps));
  return section(
    "Executions",
    "",
    facts([
      ["steps", exactText(steps)],
      ["executions", exactText(sum(column(series.executions)))],
      ["time", secondsText(total)],
      ["steps per second", total > 0 ? valueText(steps / total) : "–"],
      ["waiting for data", shareText(sum(column(series.wait_seconds)) / total)],
      ["dispatching", shareText(sum(column(series.dispatch_seconds)) / total)],
    ]),
    element("h3", {}, "Steps per second"),
    curves({ name: "Steps per second", x, xName: "after", xText: momentText, yText: valueText, series: [{ name: "steps/s", values: ratio(column(series.steps), seconds), color: COLORS[0], steps: true }], height: 170 }),
    element("h3", {}, "Share of the time that the loop spends"),
    curves({
      name: "Shares of time",
      x,
      xName: "after",
      xText: momentText,
      yText: shareText,
      series: [part("waiting for data", "wait_seconds", PART_COLORS.data), part("compiling", "compile_seconds", PART_COLORS.compile), part("dispatching", "dispatch_seconds", "#98a2ae")],
      height: 170,
      range: (_, low, high) => [0, Math.max(high ?? 0, 0.1) * 1.05],
    }),
  );
}

function feedCurves(series, began) {
  const x = since(column(series.time), began);
  const depth = column(series.depth);
  const emptyShare = depth.length ? depth.filter((each) => each <= 0).length / depth.length : NaN;
  const waits = column(series.wait_seconds);
  const between = Float64Array.from(x, (time, k) => (k ? time - x[k - 1] : NaN));
  return section(
    "Infeed",
    "",
    facts([
      ["blocks", exactText(sum(column(series.blocks)))],
      ["data", bytesText(sum(column(series.bytes)))],
      ["waited for it", secondsText(sum(waits))],
      ["preparing it took", secondsText(sum(column(series.prepare_seconds))), "on the feeding thread, beside the loop"],
      ["queue empty", shareText(emptyShare), "share of the samples"],
    ]),
    element("h3", {}, "Blocks that are ready"),
    curves({
      name: "Blocks that are ready",
      x,
      xName: "after",
      xText: momentText,
      series: [
        { name: "ready", values: depth, color: COLORS[2], fill: "#12805f33", steps: true },
        { name: "limit", values: column(series.limit), color: "#98a2ae", dash: [4, 3], width: 1 },
      ],
      height: 150,
      range: (_, low, high) => [0, Math.max(high ?? 0, 1) * 1.15],
    }),
    element("h3", {}, "Waiting and preparing, of each second"),
    curves({
      name: "Waiting and preparing",
      x,
      xName: "after",
      xText: momentText,
      yText: shareText,
      series: [
        { name: "the loop waits", values: ratio(waits, between), color: PART_COLORS.compile, text: shareText },
        { name: "the feeding thread prepares", values: ratio(column(series.prepare_seconds), between), color: COLORS[0], text: shareText },
      ],
      height: 170,
    }),
  );
}

function verdictsOf(run) {
  return run.verdicts.map((verdict) =>
    section(
      "Benchmark of the data set",
      `${plural(verdict.steps, "step")} each`,
      bars(
        [
          ["loading alone", verdict.loader_seconds, COLORS[0]],
          ["the model alone", verdict.model_seconds, COLORS[2]],
          ["both together", verdict.both_seconds, COLORS[1]],
        ].map(([name, seconds, background]) => ({ name, parts: [{ name: "of a step", value: number(seconds) || 0, color: background }] })),
        secondsText,
      ),
      element("p", { class: "advice" }, verdict.verdict),
    ),
  );
}
