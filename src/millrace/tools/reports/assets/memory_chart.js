// Bytes alive at each program point: areas by role, one on top of the other; the peak is marked.

function memoryChart(profile, most, height = 300) {
  const points = column(profile.points);
  const areas = profile.areas.map((area) => ({ role: area.role, curve: column(area.curve) }));
  const total = new Float64Array(points.length);
  const series = areas.map((area) => {
    for (let i = 0; i < total.length; i++) total[i] += area.curve[i];
    return { name: area.role, values: Float64Array.from(total), color: roleColor(area.role), fill: roleColor(area.role), width: 0.5, steps: 1 };
  });
  const segments = {
    first: column(profile.segments.first),
    layer: column(profile.segments.layer),
    kind: column(profile.segments.kind),
  };
  const at = (point) => segmentAt(profile, segments, point);
  const chart = curves({
    name: `Memory of ${profile.program}`,
    x: points,
    // The tallest is drawn first, the others over it.
    series: series.reverse(),
    xName: "program point",
    xText: exactText,
    yText: bytesText,
    height,
    legend: false,
    range: () => [0, most * 1.08 || 1],
    hover: (u) => hoverPoint(u, areas, at),
    marks: (u) => {
      drawPasses(u, profile, segments);
      drawPeak(u, profile);
    },
  });
  return chart;
}

function segmentAt(profile, segments, point) {
  let low = 0;
  let high = segments.first.length;
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (segments.first[middle] <= point) low = middle + 1;
    else high = middle;
  }
  if (!low) return null;
  return { layer: profile.segments.layers[segments.layer[low - 1]], kind: profile.segments.kinds[segments.kind[low - 1]] };
}

function hoverPoint(u, areas, at) {
  const { left, idx, top } = u.cursor;
  if (idx === null || idx === undefined || left < 0) {
    hideTooltip();
    return;
  }
  const point = u.data[0][idx];
  const segment = at(point);
  const box = u.over.getBoundingClientRect();
  showTooltip(box.left + left, box.top + Math.max(top, 0), `program point ${exactText(point)}`, [
    segment && segment.layer ? ["layer", segment.layer] : null,
    segment && segment.kind ? ["pass", segment.kind, passColor(segment.kind)] : null,
    ["alive", bytesText(sum(areas.map((area) => area.curve[idx])))],
    ...areas.map((area) => [area.role, bytesText(area.curve[idx]), roleColor(area.role)]).reverse(),
  ]);
}

// A strip below the areas: which pass each point belongs to.
function drawPasses(u, profile, segments) {
  const { ctx, bbox } = u;
  const height = 5 * uPlot.pxRatio;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height + height + 2);
  ctx.clip();
  for (let k = 0; k < segments.first.length; k++) {
    const from = u.valToPos(segments.first[k], "x", true);
    const last = k + 1 < segments.first.length ? segments.first[k + 1] : profile.length;
    const to = u.valToPos(last, "x", true);
    if (to < bbox.left || from > bbox.left + bbox.width) continue;
    ctx.fillStyle = passColor(profile.segments.kinds[segments.kind[k]]);
    ctx.fillRect(from, bbox.top + bbox.height, Math.max(to - from, 1), height);
  }
  ctx.restore();
}

function drawPeak(u, profile) {
  if (profile.point === null) return;
  const { ctx, bbox } = u;
  const x = u.valToPos(profile.point, "x", true);
  if (x < bbox.left || x > bbox.left + bbox.width) return;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = color("--ink");
  ctx.setLineDash([4 * uPlot.pxRatio, 3 * uPlot.pxRatio]);
  ctx.beginPath();
  ctx.moveTo(x, bbox.top);
  ctx.lineTo(x, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = `600 ${11 * uPlot.pxRatio}px ${FONT}`;
  const right = x > bbox.left + bbox.width * 0.7;
  ctx.textAlign = right ? "right" : "left";
  ctx.textBaseline = "top";
  const y = Math.max(u.valToPos(profile.peak, "y", true) - 16 * uPlot.pxRatio, bbox.top);
  ctx.fillText(`peak ${bytesText(profile.peak)}`, x + (right ? -5 : 5) * uPlot.pxRatio, y);
  ctx.restore();
}
