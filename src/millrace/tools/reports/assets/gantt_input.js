// Pointer and keys on a timeline.

function followPointer(gantt) {
  const { canvas, view } = gantt;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  let drag = null;
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [x] = place(event);
      const unit = event.deltaMode === 1 ? 33 : 1;
      if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        view.pan((((event.deltaX || event.deltaY) * unit) / gantt.plot) * 1);
      } else {
        view.zoom(Math.exp(event.deltaY * unit * 0.002), gantt.timeAt(Math.max(x, gantt.labels)));
      }
      hideTooltip();
    },
    { passive: false },
  );
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x] = place(event);
    drag = { x, from: view.from, to: view.to, pans: event.shiftKey || x < gantt.labels };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag && drag.pans) {
      const moved = ((drag.x - x) / gantt.plot) * (drag.to - drag.from);
      view.show(drag.from + moved, drag.to + moved);
    } else if (drag && Math.abs(x - drag.x) > 3) {
      gantt.selection = [drag.x, Math.min(Math.max(x, gantt.labels), gantt.labels + gantt.plot)];
      gantt.later();
    } else {
      hover(gantt, x, y, event);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = place(event);
    if (drag && gantt.selection) {
      const [from, to] = gantt.selection.map((each) => gantt.timeAt(each)).sort((a, b) => a - b);
      gantt.selection = null;
      view.show(from, to);
    } else if (drag && !drag.pans) {
      gantt.choose(gantt.hit(x, y));
      tell(gantt);
    }
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
    gantt.selection = null;
    gantt.later();
  });
  canvas.addEventListener("pointerleave", hideTooltip);
  canvas.addEventListener("dblclick", () => view.whole());
}

function hover(gantt, x, y, event) {
  const hit = gantt.hit(x, y);
  const text = hit && gantt.describe(hit);
  if (!text) {
    const row = x < gantt.labels && gantt.rows.find((each) => y + gantt.host.scrollTop >= each.top && y + gantt.host.scrollTop < each.top + each.whole);
    if (row) showTooltip(event.clientX, event.clientY, row.title ?? row.name, []);
    else hideTooltip();
    return;
  }
  showTooltip(event.clientX, event.clientY, ...text);
}

// Writes the chosen span below the timeline, where screen readers read it.
function tell(gantt) {
  const chosen = gantt.chosen;
  if (!chosen) {
    gantt.status.textContent = "";
    return;
  }
  const [title, lines] = chosen.row.tip(chosen.lane.items[chosen.span]);
  gantt.status.textContent = [title, ...lines.filter((line) => line).map(([name, value]) => `${name} ${value}`)].join(" · ");
}

function followKeys(gantt) {
  const { view } = gantt;
  const keys = {
    w: () => view.zoom(0.7),
    "+": () => view.zoom(0.7),
    s: () => view.zoom(1 / 0.7),
    "-": () => view.zoom(1 / 0.7),
    a: () => view.pan(-0.2),
    d: () => view.pan(0.2),
    0: () => view.whole(),
    Escape: () => gantt.choose(null),
    ArrowRight: () => step(gantt, 1),
    ArrowLeft: () => step(gantt, -1),
    ArrowDown: () => change(gantt, 1),
    ArrowUp: () => change(gantt, -1),
  };
  gantt.canvas.addEventListener("keydown", (event) => {
    const action = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!action || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    action();
    tell(gantt);
  });
}

// Goes to the next span of the row, and shows it.
function step(gantt, by) {
  const chosen = gantt.chosen;
  if (!chosen) {
    change(gantt, 1);
    return;
  }
  const span = Math.min(Math.max(chosen.span + by, 0), chosen.lane.length - 1);
  gantt.chosen = { ...chosen, span };
  reveal(gantt, chosen.lane, span);
}

// Goes to the row below or above, at about the same time.
function change(gantt, by) {
  const lanes = gantt.rows.flatMap((row) => row.lanes.filter((lane) => lane.length).map((lane) => ({ row, lane })));
  if (!lanes.length) return;
  const chosen = gantt.chosen;
  const now = chosen ? lanes.findIndex((each) => each.lane === chosen.lane) : -1;
  const next = lanes[Math.min(Math.max(now + by, 0), lanes.length - 1)];
  const time = chosen ? (chosen.lane.starts[chosen.span] + chosen.lane.ends[chosen.span]) / 2 : gantt.view.from;
  const span = Math.min(next.lane.endingAfter(time), next.lane.length - 1);
  gantt.chosen = { ...next, span };
  const below = next.row.top + next.row.whole + BOTTOM - gantt.visible;
  gantt.host.scrollTop = Math.max(Math.min(gantt.host.scrollTop, next.row.top - AXIS - 4), below);
  reveal(gantt, next.lane, span);
}

function reveal(gantt, lane, span) {
  const { view } = gantt;
  const from = lane.starts[span];
  const to = lane.ends[span];
  if (to > view.to || from < view.from) {
    const middle = (from + to) / 2;
    view.show(middle - view.length / 2, middle + view.length / 2);
  }
  gantt.later();
}
