// Curves over steps or time, by uPlot: hover, zoom by a drag, everything by a double click.

function finite(values) {
  return Array.from(values, (value) => (Number.isFinite(value) ? value : null));
}

const WHOLE = [1, 2, 5].flatMap((m) => Array.from({ length: 12 }, (_, k) => m * 10 ** k)).sort((a, b) => a - b);

function axes({ xText = valueText, yText = valueText, xName, yName }) {
  const label = (text) => ({ label: text, labelFont: `11px ${FONT}`, labelSize: text ? 18 : 0 });
  const common = {
    stroke: () => color("--ink-faint"),
    grid: { stroke: () => color("--line"), width: 1 },
    ticks: { show: false },
    font: `11px ${FONT}`,
  };
  return [
    { ...common, ...label(xName === "after" ? "time since the loop began" : xName), grid: { show: false }, incrs: xText === exactText ? WHOLE : undefined, values: (_, splits) => splits.map(xText), size: 26, gap: 8, space: 70 },
    { ...common, ...label(yName), values: (_, splits) => splits.map((each) => (each === null ? "" : yText(each))), size: 62, space: 36 },
  ];
}

// options: {x, series: [{name, values, color, dash, steps: 1 until the next point, -1 since the last}], xText, yText, xName, yName where yText has no unit, height, log, range, fill, marks, name}
function curves(options) {
  const { series, height = 220, name } = options;
  const host = element("div", { class: "curves", tabindex: "0", role: "img", "aria-label": `${name}. Arrow keys go from point to point.`, style: { minHeight: `${height}px` } });
  const x = finite(options.x);
  const data = [x, ...series.map((each) => finite(each.values))];
  if (options.log) for (let k = 1; k < data.length; k++) data[k] = data[k].map((value) => (value > 0 ? value : null));
  let plot = null;
  const make = (width) => {
    if (plot) {
      plot.setSize({ width, height });
      return;
    }
    plot = new uPlot(
      {
        width,
        height,
        legend: { show: false },
        cursor: { y: false, points: { size: 7 }, drag: { x: true, y: false } },
        scales: {
          x: { time: false, range: (_, low, high) => (low === null ? [0, 1] : low === high ? [low - 0.5, high + 0.5] : [low, high]) },
          y: options.log && data.slice(1).some((each) => each.some((value) => value !== null)) ? { distr: 3 } : { range: options.range ?? niceRange },
        },
        axes: axes(options),
        series: [
          {},
          ...series.map((each) => ({
            label: each.name,
            stroke: each.color,
            fill: each.fill,
            width: each.width ?? 1.75,
            dash: each.dash,
            paths: each.steps ? uPlot.paths.stepped({ align: each.steps }) : undefined,
            points: { show: x.length < 40 && !each.steps, size: 5 },
          })),
        ],
        hooks: { setCursor: [(u) => (options.hover ?? hoverValues)(u, options)], draw: options.marks ? [options.marks] : [] },
      },
      data,
      host,
    );
    host.plot = plot;
    plot.over.addEventListener("mouseleave", hideTooltip);
    host.dataset.ready = "1";
  };
  onWidth(host, make);
  onTheme(() => plot && plot.redraw(false));
  onLeave(() => plot && plot.destroy());
  host.addEventListener("keydown", (event) => moveCursor(event, plot));
  host.addEventListener("blur", hideTooltip);
  if (options.legend === false || (series.length < 2 && !options.legend)) return host;
  return element("div", {}, element("div", { class: "legend" }, series.map((each) => swatch(each.color, element("bdi", {}, each.name)))), host);
}

function niceRange(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const from = low >= 0 && (low < high * 0.6 || low === high) ? 0 : low;
  const space = (high - from) * 0.06 || Math.abs(high) * 0.1 || 1;
  if (low === high && low === 0) return [0, 1];
  return [from === 0 ? 0 : from - space, high + space];
}

function hoverValues(u, options) {
  const { left, idx, top } = u.cursor;
  if (idx === null || idx === undefined || left < 0) {
    hideTooltip();
    return;
  }
  const box = u.over.getBoundingClientRect();
  const text = options.yText ?? valueText;
  const lines = options.series.map((each, k) => {
    const value = u.data[k + 1][idx];
    const raw = each.values[idx];
    if (value === null && (raw === undefined || options.overlaid)) return null;
    return [each.name, value === null ? valueText(raw) : (each.text ?? text)(value), each.color];
  });
  const title = `${options.xName ? options.xName + " " : ""}${(options.xText ?? valueText)(u.data[0][idx])}`;
  showTooltip(box.left + left, box.top + Math.max(top, 0), title, lines.slice(0, 16));
}

// Left and right move the pointer of a chart, Escape takes it away.
function moveCursor(event, u) {
  if (!u || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape", "0"].includes(event.key)) return;
  event.preventDefault();
  const last = u.data[0].length - 1;
  if (event.key === "Escape") {
    u.setCursor({ left: -10, top: -10 });
    hideTooltip();
    return;
  }
  if (event.key === "0") {
    u.setScale("x", { min: u.data[0][0], max: u.data[0][last] });
    return;
  }
  const now = u.cursor.idx ?? -1;
  const next = { ArrowLeft: Math.max(now - 1, 0), ArrowRight: Math.min(now + 1, last), Home: 0, End: last }[event.key];
  u.setCursor({ left: u.valToPos(u.data[0][next], "x"), top: 10 });
}
