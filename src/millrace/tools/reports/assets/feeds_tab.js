// Feeds: is there always a block ready? And the speed of the loop over time.

function feedsTab(run) {
  if (!run.feeds.length && !run.executions.length) {
    return [section("Feeds", "", empty("No loop has fed data to a device", "A run samples the queue of its infeed and the speed of its executions while it trains, evaluates or predicts.", REPORT_DIR))];
  }
  const keys = [...new Set([...run.executions, ...run.feeds].map(keyOfSeries))];
  const longest = keys.reduce((best, key, k) => (lengthOf(run, key) > lengthOf(run, keys[best]) ? k : best), 0);
  const host = element("div", { class: "stacked" });
  const show = (k) => fill(host, feedView(run, keys[k]));
  if (keys.length) show(longest);
  return [
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
  const from = executions ? column(executions.time)[compiledUntil(executions)] - began : 0;
  return [executions ? executionCurves(executions, began, from) : null, feed ? feedCurves(feed, began, from) : null].filter((each) => each);
}

// The number of the first sample after those that compiled: they would take most of the axis.
function compiledUntil(series) {
  const shares = ratio(column(series.compile_seconds), column(series.seconds));
  return Math.max(shares.findIndex((share) => !(share > 0.5)), 0);
}

function since(times, began) {
  return Float64Array.from(times, (time) => time - began);
}

function ratio(over, under) {
  return Float64Array.from(over, (value, k) => (under[k] > 0 ? value / under[k] : NaN));
}

function executionCurves(series, began, from) {
  const times = since(column(series.time), began);
  const seconds = column(series.seconds);
  const total = sum(seconds);
  const first = times.findIndex((time) => time >= from);
  const last = times.length - 1;
  // Each value holds until the next sample, the last one until its end.
  const x = [...times.slice(first), times[last] + seconds[last]];
  const held = (field) => {
    const values = ratio(column(series[field]), seconds);
    return [...values.slice(first), values[last]];
  };
  const part = (name, field, background) => ({ name, values: held(field), color: background, text: shareText, steps: 1 });
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
    from > 0 ? element("p", { class: "note" }, `The charts leave out the first ${secondsText(from)}, of which most went into compiling.`) : null,
    element("h3", {}, "Steps per second"),
    curves({ name: "Steps per second", x, xName: "after", xText: momentText, yName: "steps per second", series: [{ name: "steps/s", values: held("steps"), color: COLORS[0], steps: 1 }], height: 170 }),
    element("h3", {}, "Share of the time that the loop spends"),
    curves({
      name: "Shares of time",
      x,
      xName: "after",
      xText: momentText,
      yText: shareText,
      yName: "share of the time",
      series: [part("waiting for data", "wait_seconds", PART_COLORS.data), part("compiling", "compile_seconds", PART_COLORS.compile), part("dispatching", "dispatch_seconds", "#98a2ae")],
      height: 170,
      range: (_, low, high) => [0, Math.max(high ?? 0, 0.1) * 1.05],
    }),
  );
}

function feedCurves(series, began, from) {
  const times = since(column(series.time), began);
  const waits = column(series.wait_seconds);
  const between = Float64Array.from(times, (time, k) => (k ? time - times[k - 1] : NaN));
  const first = Math.max(times.findIndex((time) => time >= from), 0);
  const x = times.slice(first);
  const share = (seconds) => ratio(seconds, between).slice(first);
  return section(
    "Infeed",
    "",
    facts([
      ["blocks", exactText(sum(column(series.blocks)))],
      ["data", bytesText(sum(column(series.bytes)))],
      ["waited for it", secondsText(sum(waits))],
      ["preparing it took", secondsText(sum(column(series.prepare_seconds))), "on the feeding thread, beside the loop"],
    ]),
    element("h3", {}, "Blocks that are ready", element("span", { class: "note" }, "besides the one in use; with none the loop waits only where the data is late")),
    curves({
      name: "Blocks that are ready",
      yName: "blocks",
      x,
      xName: "after",
      xText: momentText,
      series: [
        { name: "ready", values: column(series.depth).slice(first), color: COLORS[2], fill: "#12805f33", steps: 1 },
        { name: "limit", values: column(series.limit).slice(first), color: "#98a2ae", dash: [4, 3], width: 1, steps: 1 },
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
      yName: "share of the time",
      series: [
        { name: "the loop waits", values: share(waits), color: PART_COLORS.data, text: shareText, steps: -1 },
        { name: "the feeding thread prepares", values: share(column(series.prepare_seconds)), color: COLORS[0], text: shareText, steps: -1 },
      ],
      height: 170,
    }),
  );
}
