// A timeline on a canvas: rows of lanes over time.
//
// wheel or drag: zoom; Shift with them: pan; double click: everything
// keys: W S zoom, A D pan, 0 everything; arrows go from span to span and from row to row

const AXIS = 26;
const BOTTOM = 6;

class Gantt {
  // rows: [{label, title, height, gap, lanes, styles, label(item), tip(item) -> [title, lines], idle, clips, group}]
  constructor(rows, view, { name, most = 620, labels = 132 }) {
    this.rows = rows;
    this.view = view;
    this.wanted = labels; // pixels for the names of rows
    this.chosen = null; // {row, lane, span}
    this.layOut();
    this.canvas = element("canvas", { tabindex: "0", role: "img", "aria-label": `${name}. Arrow keys go from span to span.` });
    this.spacer = element("div", { class: "gantt-spacer", style: { height: `${this.height}px` } }, this.canvas);
    this.host = element("div", { class: "gantt", style: { height: `${Math.min(this.height, most)}px` } }, this.spacer);
    this.status = element("p", { class: "gantt-status", "aria-live": "polite" });
    this.visible = Math.min(this.height, most);
    onWidth(this.host, (width) => this.resize(width));
    onTheme(() => this.draw());
    view.listeners.push(() => this.later());
    this.host.addEventListener("scroll", () => this.later());
    followPointer(this);
    followKeys(this);
  }

  layOut() {
    let y = AXIS;
    for (const row of this.rows) {
      y += row.gap ?? 4;
      row.top = y;
      row.whole = row.height * Math.max(row.lanes.length, 1) + Math.max(row.lanes.length - 1, 0);
      y += row.whole;
    }
    this.height = y + BOTTOM;
  }

  resize(width) {
    this.width = width;
    this.labels = Math.min(this.wanted, Math.round(width * 0.3));
    this.ratio = Math.min(window.devicePixelRatio || 1, 3);
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(this.visible * this.ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.visible}px`;
    this.draw();
  }

  get plot() {
    return Math.max(this.width - this.labels - 8, 20);
  }

  timeAt(x) {
    return this.view.from + ((x - this.labels) / this.plot) * this.view.length;
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    if (!this.width) return;
    const began = performance.now();
    const context = this.canvas.getContext("2d");
    const ratio = this.ratio;
    const scrolled = this.host.scrollTop;
    context.setTransform(1, 0, 0, 1, 0, 0);
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.font = `600 ${11 * ratio}px ${FONT}`;
    this.drawGrid(context, ratio);
    for (const row of this.rows) {
      const top = row.top - scrolled;
      if (top + row.whole < AXIS || top > this.visible) continue;
      this.drawRow(context, row, top, ratio);
    }
    this.drawAxis(context, ratio);
    if (this.selection) this.drawSelection(context, ratio);
    this.canvas.dataset.frame = (performance.now() - began).toFixed(2);
    this.canvas.dataset.from = this.view.from;
    this.canvas.dataset.to = this.view.to;
  }

  drawRow(context, row, top, ratio) {
    const left = Math.round(this.labels * ratio);
    const width = Math.round(this.plot * ratio);
    context.save();
    context.beginPath();
    context.rect(left, Math.max(top, AXIS) * ratio, width, row.whole * ratio);
    context.clip();
    if (row.idle) {
      context.fillStyle = color("--idle");
      context.fillRect(left, top * ratio, width, row.whole * ratio);
    }
    row.lanes.forEach((lane, k) => {
      const area = {
        left,
        top: Math.round((top + k * (row.height + 1)) * ratio),
        width,
        height: Math.round(row.height * ratio),
        ratio,
      };
      if (row.behind) paintLane(context, row.behind.lane, row.behind, area, this.view);
      const mine = this.chosen && this.chosen.row === row && this.chosen.lane === lane;
      const item = mine ? lane.items[this.chosen.span] : -1;
      const same = this.chosen && row.same ? row.same(this.chosen) : null;
      paintLane(context, lane, row, area, this.view, mine || same ? (each) => each === item || (same && same(each)) : null);
    });
    context.restore();
    if (top < AXIS - row.height) return;
    context.save();
    context.font = `${row.faint ? 400 : 500} ${11.5 * ratio}px ${FONT}`;
    context.textAlign = "left";
    context.textBaseline = "middle";
    context.fillStyle = color(row.faint ? "--ink-faint" : "--ink-soft");
    context.fillText(clipped(context, row.name, (this.labels - 12) * ratio), 0, (top + row.whole / 2) * ratio);
    context.restore();
  }

  drawGrid(context, ratio) {
    context.fillStyle = color("--line");
    for (const time of this.ticks()) {
      const x = Math.round((this.labels + ((time - this.view.from) / this.view.length) * this.plot) * ratio);
      context.fillRect(x, (AXIS - 6) * ratio, Math.max(Math.round(ratio), 1), this.canvas.height);
    }
  }

  drawAxis(context, ratio) {
    context.clearRect(0, 0, this.canvas.width, (AXIS - 6) * ratio);
    context.font = `${11 * ratio}px ${FONT}`;
    context.fillStyle = color("--ink-faint");
    context.textBaseline = "middle";
    context.textAlign = "center";
    for (const time of this.ticks()) {
      const x = this.labels + ((time - this.view.from) / this.view.length) * this.plot;
      const text = axisTime(time, this.view.length);
      const last = this.canvas.width - context.measureText(text).width / 2; // at the right edge
      context.fillText(text, Math.min(x * ratio, last), 9 * ratio);
    }
    // Which part of everything is visible.
    const all = this.view.last - this.view.first;
    const bar = (time) => (this.labels + ((time - this.view.first) / all) * this.plot) * ratio;
    context.fillStyle = color("--line");
    context.fillRect(bar(this.view.first), 0, bar(this.view.last) - bar(this.view.first), 2 * ratio);
    context.fillStyle = color("--accent");
    context.fillRect(bar(this.view.from), 0, Math.max(bar(this.view.to) - bar(this.view.from), 3), 2 * ratio);
  }

  ticks() {
    return ticks(this.view.from, this.view.to, Math.max(Math.floor(this.plot / 90), 2));
  }

  drawSelection(context, ratio) {
    const [from, to] = this.selection;
    context.fillStyle = color("--selection");
    context.fillRect(Math.min(from, to) * ratio, AXIS * ratio, Math.abs(to - from) * ratio, this.canvas.height);
  }

  // The row, lane and span at a place on the canvas.
  hit(x, y) {
    const down = y + this.host.scrollTop;
    if (y < AXIS || x < this.labels) return null;
    const row = this.rows.find((each) => down >= each.top && down < each.top + each.whole);
    if (!row) return null;
    const lane = row.lanes[Math.min(Math.floor((down - row.top) / (row.height + 1)), row.lanes.length - 1)];
    if (!lane) return null;
    const time = this.timeAt(x);
    const one = this.view.length / this.plot;
    let span = lane.at(time);
    if (span < 0) {
      // A span that is narrower than a pixel can be hit beside it.
      const near = lane.endingAfter(time - one);
      if (near < lane.length && lane.starts[near] <= time + one) span = near;
    }
    const behind = row.behind ? row.behind.lane.at(time) : -1;
    return { row, lane, span, behind, time, one };
  }

  // Title and lines about what is there.
  describe({ row, lane, span, behind, time, one }) {
    if (span >= 0 && (lane.ends[span] - lane.starts[span]) < one * 0.8) {
      const from = time - one;
      const last = lane.endingAfter(time + one);
      const count = last - lane.endingAfter(from);
      if (count > 1) {
        const shares = lane.shares(from, time + one);
        return [
          `${row.name}: ${exactText(count)} spans in ${secondsText(2 * one)}`,
          shares.map((share, k) => (share > 0.001 ? [row.styles[k].name, shareText(share), row.styles[k].color] : null)),
        ];
      }
    }
    if (span >= 0) return row.tip(lane.items[span]);
    if (behind >= 0) return row.behind.tip(row.behind.lane.items[behind]);
    return row.idle ? [`${row.name}: idle`, [["at", secondsText(time)]]] : null;
  }

  choose(hit) {
    this.chosen = hit && hit.span >= 0 ? hit : null;
    this.later();
  }
}

const FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, sans-serif';

// A moment on the axis, with as many digits as the ticks need.
function axisTime(time, length) {
  const [unit, name] = length >= 1 ? [1, "s"] : length >= 1e-3 ? [1e-3, "ms"] : length >= 1e-6 ? [1e-6, "µs"] : [1e-9, "ns"];
  const value = time / unit;
  const digits = Math.max(0, Math.min(6, Math.ceil(-Math.log10(length / unit / 20))));
  return `${value.toFixed(digits)} ${name}`;
}
