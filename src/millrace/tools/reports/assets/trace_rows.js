// The rows of a trace: measured tasks of each device group, the simulated ones, activities.

const ACTIVITY_COLORS = { infeed: "#4fb3ba", outfeed: "#a58bc9", host: "#98a2ae", compile: "#b8433f" };
const hatch = hatching();

function traceRows(trace, shown) {
  const times = (spans) => timesOf(trace, spans);
  const tasks = tasksOf(trace.tasks, times);
  const twin = trace.twin ? tasksOf(trace.twin, times) : null;
  const idle = trace.idle ? idleOf(trace, times) : null;
  const of = (group) => trace.activities.filter((each) => each.row === `group ${group}`);
  const groups = Math.max(trace.groups, tasks.group.reduce((most, each) => Math.max(most, each + 1), 0));
  const rows = [];
  for (let group = 0; group < groups; group++) {
    const title = trace.stage_per_group && tasks.start.length ? `stage ${group}` : `group ${group}`;
    const mine = taskRow(trace, tasks, group, title, times, of(group));
    if (shown.idle && idle) mine.behind = idleRow(idle, group, title);
    rows.push(mine);
    if (shown.twin && twin) rows.push({ ...taskRow(trace, twin, group, "simulated", times, []), title: `${title}, simulated`, height: 13, gap: 1, faint: true });
  }
  const others = trace.activities.filter((each) => !/^group \d+$/.test(each.row));
  others.forEach((each, k) => rows.push(activityRow(each, times, k === 0)));
  return rows;
}

// Starts and ends in seconds, from the ticks between starts and the lengths.
function timesOf(trace, spans) {
  const gaps = column(spans.gap);
  const lengths = column(spans.length);
  const start = new Float64Array(gaps.length);
  const end = new Float64Array(gaps.length);
  let tick = 0;
  for (let i = 0; i < gaps.length; i++) {
    tick += gaps[i];
    start[i] = trace.first + tick * trace.tick;
    end[i] = trace.first + (tick + lengths[i]) * trace.tick;
  }
  return { start, end };
}

function tasksOf(tasks, times) {
  return {
    ...times(tasks),
    group: column(tasks.group),
    stage: column(tasks.stage),
    micro_batch: column(tasks.micro_batch),
    kind: column(tasks.kind),
    kinds: tasks.kinds,
  };
}

function styleOf(kind) {
  return DATA.styles[kind] ?? { name: kind || "task", color: COLORS[hashOf(kind) % COLORS.length], ink: "#ffffff" };
}

function taskRow(trace, tasks, group, name, times, activities) {
  const styles = [...tasks.kinds.map(styleOf), { name: "other work", color: PASS_COLORS.update, ink: "#ffffff" }];
  const mine = [];
  for (let i = 0; i < tasks.start.length; i++) if (tasks.group[i] === group) mine.push(i);
  const starts = Float64Array.from(mine, (i) => tasks.start[i]);
  const ends = Float64Array.from(mine, (i) => tasks.end[i]);
  const kinds = Uint8Array.from(mine, (i) => tasks.kind[i]);
  const extra = activities.flatMap((each) => spansOf(each, times));
  const lanes = lanesOf(
    joined(starts, extra.map((each) => each.start)),
    joined(ends, extra.map((each) => each.end)),
    Uint8Array.from(joined(kinds, extra.map(() => styles.length - 1))),
    styles.length,
  );
  const text = (i) => (trace.stage_per_group ? `${tasks.kinds[tasks.kind[i]]}${tasks.micro_batch[i]}` : `${tasks.stage[i]}${tasks.kinds[tasks.kind[i]]}${tasks.micro_batch[i]}`);
  return {
    name,
    title: name,
    height: 24,
    gap: 5,
    idle: true,
    styles,
    lanes,
    label: (k) => (k < mine.length ? text(mine[k]) : extra[k - mine.length].name),
    same: (chosen) => {
      const i = chosen.row.taskOf ? chosen.row.taskOf(chosen.lane.items[chosen.span]) : null;
      if (i === null || i === undefined) return null;
      return (k) => k < mine.length && tasks.micro_batch[mine[k]] === i.micro_batch && starts.length < 20000;
    },
    taskOf: (k) => (k < mine.length ? { micro_batch: tasks.micro_batch[mine[k]] } : null),
    tip: (k) => {
      if (k >= mine.length) return activityTip(extra[k - mine.length]);
      const i = mine[k];
      const kind = styleOf(tasks.kinds[tasks.kind[i]]);
      return [
        `${tasks.stage[i]}${tasks.kinds[tasks.kind[i]]}${tasks.micro_batch[i]}${name === "simulated" ? ", simulated" : ""}`,
        [
          ["pass", kind.name, kind.color],
          ["stage", tasks.stage[i]],
          ["micro-batch", tasks.micro_batch[i]],
          ["takes", secondsText(tasks.end[i] - tasks.start[i])],
          ["from", secondsText(tasks.start[i])],
          ["to", secondsText(tasks.end[i])],
        ],
      ];
    },
  };
}

function joined(numbers, more) {
  const all = new Float64Array(numbers.length + more.length);
  all.set(numbers);
  all.set(more, numbers.length);
  return all;
}

function spansOf(activity, times) {
  const { start, end } = times(activity);
  const numbers = column(activity.name);
  const names = column(activity.names);
  return Array.from(start, (from, k) => ({ start: from, end: end[k], name: names[numbers[k]] }));
}

function activityTip(span) {
  return [
    span.name || "(no name)",
    [
      ["takes", secondsText(span.end - span.start)],
      ["from", secondsText(span.start)],
      ["to", secondsText(span.end)],
    ],
  ];
}

function activityColor(activity) {
  const key = activity.row.split(" ")[0];
  return key === "group" ? PASS_COLORS.update : (ACTIVITY_COLORS[key] ?? COLORS[hashOf(key) % COLORS.length]);
}

// What the colours of activities stand for: names of the work of device groups, and other rows.
function activityKinds(trace) {
  const named = trace.activities.flatMap((each) =>
    (/^group \d/.test(each.row) ? column(each.names) : [each.row.split(" ")[0]]).map((name) => [name, activityColor(each)]),
  );
  return [...new Map(named)].slice(0, 12);
}

function activityRow(activity, times, isFirst) {
  const spans = spansOf(activity, times);
  const background = activityColor(activity);
  return {
    name: activity.row,
    title: activity.row,
    height: 16,
    gap: isFirst ? 14 : 4,
    clips: true,
    styles: [{ name: activity.row, color: background, ink: inkOn(background) }],
    lanes: lanesOf(Float64Array.from(spans, (s) => s.start), Float64Array.from(spans, (s) => s.end), new Uint8Array(spans.length), 1, 3),
    label: (k) => spans[k].name,
    tip: (k) => activityTip(spans[k]),
  };
}

function idleOf(trace, times) {
  return {
    ...times(trace.idle),
    group: column(trace.idle.group),
    reason: column(trace.idle.reason),
    micro_batch: column(trace.idle.micro_batch),
    reasons: column(trace.idle.reasons),
  };
}

function reasonOf(idle, i) {
  return idle.reasons[idle.reason[i]].replace("#", idle.micro_batch[i]);
}

function idleRow(idle, group, name) {
  const mine = [];
  for (let i = 0; i < idle.start.length; i++) if (idle.group[i] === group) mine.push(i);
  const starts = Float64Array.from(mine, (i) => idle.start[i]);
  const ends = Float64Array.from(mine, (i) => idle.end[i]);
  const styles = [{ name: "idle", color: "#c4ccd6", pattern: hatch }];
  const [lane] = lanesOf(starts, ends, new Uint8Array(mine.length), 1, 1);
  return {
    boxesOnly: true,
    lane: lane ?? new Lane(starts, ends, new Uint8Array(0), new Uint32Array(0), 1),
    styles,
    clips: true,
    label: (k) => reasonOf(idle, mine[k]),
    tip: (k) => [
      `${name}: idle`,
      [
        ["because", reasonOf(idle, mine[k])],
        ["takes", secondsText(idle.end[mine[k]] - idle.start[mine[k]])],
        ["from", secondsText(idle.start[mine[k]])],
        ["to", secondsText(idle.end[mine[k]])],
      ],
    ],
  };
}
