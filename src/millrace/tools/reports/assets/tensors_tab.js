// Tensors: histories of the statistics of activations, losses and gradients.

const MOST_TENSORS = 8;

function tensorsTab(run) {
  const { tensors, statistics, in_all } = run.tensors;
  if (!tensors.length) {
    return [
      section("Tensors", "", empty("No statistics of tensors were kept", "A callback takes them while a model trains.", 'model.fit(x, y, callbacks=[millrace.callbacks.TensorStatistics(activations="*", gradients="*")])')),
      flightsOf(run),
    ];
  }
  const state = { statistic: Math.max(statistics.indexOf("norm"), 0), log: false, chosen: firstTensors(tensors) };
  const host = element("div");
  const show = () => fill(host, tensorCurves(tensors, statistics, state));
  show();
  return [
    section(
      "Statistics of tensors",
      in_all > tensors.length ? `${exactText(tensors.length)} of ${exactText(in_all)} tensors` : `${plural(tensors.length, "tensor")}, up to ${MOST_TENSORS} at a time`,
      element(
        "div",
        { class: "bar" },
        select("Statistic", statistics, state.statistic, (k) => ((state.statistic = k), show())),
        element("label", { class: "control" }, element("input", { type: "checkbox", onchange: (event) => ((state.log = event.target.checked), show()) }), element("span", {}, "Logarithmic")),
      ),
      host,
    ),
    section("Choose tensors", "a click adds or removes one", tensorTable(tensors, statistics, state, show)),
    flightsOf(run),
  ];
}

function tensorName(tensor) {
  return `${tensor.kind}${tensor.name ? " " + tensor.name : ""}`;
}

function firstTensors(tensors) {
  const odd = tensors.filter((tensor) => number(tensor.nans) + number(tensor.infs) > 0);
  return new Set([...odd, ...tensors].slice(0, 4));
}

function tensorCurves(tensors, statistics, state) {
  const shown = tensors.filter((tensor) => state.chosen.has(tensor));
  if (!shown.length) return empty("No tensor is chosen", "Choose some in the table.");
  // One axis of steps for all, since each may have kept others.
  const steps = Float64Array.from(new Set(shown.flatMap((tensor) => Array.from(column(tensor.steps))))).sort();
  const at = new Map(Array.from(steps, (step, k) => [step, k]));
  const series = shown.map((tensor, k) => {
    const values = new Array(steps.length).fill(undefined);
    const own = column(tensor.values[state.statistic]);
    column(tensor.steps).forEach((step, i) => (values[at.get(step)] = own[i]));
    return { name: tensorName(tensor), values, color: COLORS[k % COLORS.length] };
  });
  const gaps = sum(series.map((each) => each.values.filter((value) => value !== undefined && !Number.isFinite(value)).length));
  return element(
    "div",
    {},
    element("div", { class: "legend" }, series.map((each) => swatch(each.color, element("bdi", {}, each.name)))),
    overlaid(series, steps, { name: statistics[state.statistic], yName: statistics[state.statistic], xName: "step", xText: exactText, height: 300, log: state.log }),
    gaps ? element("p", { class: "warning" }, `${plural(gaps, "value")} of these not finite, and left out of the curves.`) : null,
  );
}

// Curves over the steps of all of them: those of the others are no gaps.
function overlaid(series, x, options) {
  const filled = series.map((each) => ({ ...each, values: between(each.values, x) }));
  return curves({ ...options, x, series: filled, legend: false });
}

// Where a curve has no point of its own, the value on the line between its neighbours.
function between(values, x) {
  const result = Array.from(values);
  let last = -1;
  for (let i = 0; i < result.length; i++) {
    if (result[i] === undefined) continue;
    for (let k = last + 1; last >= 0 && k < i; k++) {
      result[k] = result[last] + ((result[i] - result[last]) * (x[k] - x[last])) / (x[i] - x[last]);
    }
    last = i;
  }
  return result.map((value) => (value === undefined ? NaN : value));
}

function tensorTable(tensors, statistics, state, show) {
  const norm = statistics.indexOf("norm");
  const latest = (tensor) => {
    const values = column(tensor.values[norm]);
    return values.length ? values[values.length - 1] : NaN;
  };
  const host = element("div");
  fill(
    host,
    
      table(
        [
          { name: "", cell: (t) => element("input", { type: "checkbox", checked: state.chosen.has(t), "aria-label": tensorName(t), onchange: (event) => choose(t, event.target) }), text: () => "" },
          { name: "tensor", value: tensorName },
          { name: "model", value: (t) => t.model },
          { name: "stage", value: (t) => t.stage, right: true },
          { name: "rows", value: (t) => t.steps.count, text: (t) => exactText(t.steps.count), right: true },
          { name: "latest norm", value: latest, text: (t) => valueText(latest(t)), right: true },
          { name: "NaN", value: (t) => number(t.nans), text: (t) => exactText(number(t.nans)), right: true },
          { name: "infinite", value: (t) => number(t.infs), text: (t) => exactText(number(t.infs)), right: true },
        ],
        tensors,
        { name: "Tensors", filter: "Filter by name", shown: 24 },
      ),
    );
  const choose = (tensor, box) => {
    if (box.checked && state.chosen.size >= MOST_TENSORS) {
      box.checked = false;
      return;
    }
    if (box.checked) state.chosen.add(tensor);
    else state.chosen.delete(tensor);
    show();
  };
  return host;
}
