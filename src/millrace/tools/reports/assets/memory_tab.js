// Memory: bytes alive over program points, the tensors at the peak, with and without recomputation.

const FILLS_MEMORY =
  "A run leaves it for every program that it compiles while it has a report directory.";

function memoryTab(run) {
  const { profiles } = run.memory;
  if (!profiles.length) {
    return [section("Memory", "", empty("No program has left a memory profile", FILLS_MEMORY, REPORT_DIR)), beforehand(run)];
  }
  const ran = profiles.map((profile, k) => ({ profile, k })).filter(({ profile }) => !profile.is_trial);
  const listed = ran.length ? ran : profiles.map((profile, k) => ({ profile, k }));
  const names = listed.map(({ profile }) => `${profile.program} · ${bytesText(profile.peak)}`);
  const first = listed.reduce((best, each, k) => (each.profile.peak > listed[best].profile.peak ? k : best), 0);
  const host = element("div", { class: "stacked" });
  const show = (k) => fill(host, profileView(run, listed[k].profile));
  show(first);
  return [
    section(
      "Memory by program",
      "bytes alive on one device, over the operations in order",
      peaks(listed.map(({ profile }) => profile)),
      element("div", { class: "bar" }, select("Program", names, first, show)),
    ),
    host,
    beforehand(run),
  ];
}

// The peak of each program by role, for a look at all stages.
function peaks(profiles) {
  const rows = profiles.slice(0, 24).map((profile) => {
    const points = column(profile.points);
    const at = points.indexOf(profile.point);
    const parts = profile.areas.map((area) => ({ name: area.role, value: at < 0 ? 0 : column(area.curve)[at], color: roleColor(area.role) }));
    return { name: profile.program, parts: at < 0 ? [{ name: "reserved", value: profile.requirement, color: roleColor("other") }] : parts };
  });
  return [roleLegend(), bars(rows, bytesText), profiles.length > 24 ? element("p", { class: "note" }, `and ${plural(profiles.length - 24, "more program")}`) : null];
}

function roleLegend() {
  return element("div", { class: "legend" }, DATA.roles.map((role) => swatch(roleColor(role), role)));
}

function twinOf(run, profile) {
  return run.memory.profiles.find(
    (each) => each !== profile && each.model === profile.model && each.program === profile.program && each.stage === profile.stage && each.is_trial !== profile.is_trial,
  );
}

function profileView(run, profile) {
  const trial = twinOf(run, profile);
  const shown = trial ? [profile, trial] : [profile];
  const most = Math.max(...shown.map((each) => each.peak));
  const charts = shown.map((each) =>
    section(
      trial ? (each.recomputation ? "With recomputation" : "Without recomputation") : each.program,
      trial && each.is_trial ? "compiled for comparison, never run" : `on ${each.devices.slice(0, 3).join(", ") || "one device"}`,
      facts([
        ["peak", bytesText(each.peak), exactText(each.peak) + " bytes"],
        ["reserved by the compiler", bytesText(each.requirement), exactText(each.requirement) + " bytes"],
        ["program points", exactText(each.program_points)],
        ["with a layer or a role", shareText(each.attributed), "share of the bytes, on average over the program points"],
      ]),
      each.length ? [memoryChart(each, most), passLegend(each)] : empty("No curve", "The compiler has told the sum alone."),
      trial ? element("p", { class: "note" }, "recomputed: ", element("bdi", {}, each.recomputation || "nothing")) : null,
    ),
  );
  return [
    element("div", { class: shown.length > 1 ? "pair" : "" }, charts),
    trial ? element("p", { class: "note" }, comparison(profile, trial)) : null,
    element("div", { class: "pair" }, section("Alive at the peak, by layer", "", layersOf(profile)), section("The largest of these tensors", "", tensorsOf(profile))),
  ];
}

// The passes of the strip below a chart.
function passLegend(profile) {
  const kinds = profile.segments.kinds.filter((kind) => kind);
  return kinds.length ? element("div", { class: "legend" }, element("span", { class: "note" }, "pass"), kinds.map((kind) => swatch(passColor(kind), kind))) : null;
}

function comparison(profile, trial) {
  const [less, more] = profile.peak <= trial.peak ? [profile, trial] : [trial, profile];
  const share = more.peak > 0 ? 1 - less.peak / more.peak : 0;
  return `Both charts have one scale. ${less.recomputation ? "Recomputation" : "Keeping everything"} needs ${bytesText(more.peak - less.peak)} less (${shareText(share)}).`;
}

function layersOf(profile) {
  const rows = profile.layers.slice(0, 20).map(([layer, nbytes, count]) => ({
    name: layer,
    parts: [{ name: plural(count, "tensor"), value: nbytes, color: color("--accent") }],
  }));
  if (!rows.length) return empty("No tensors", "The compiler has named none at the peak.");
  const others = profile.layers.slice(20);
  const count = others.length + profile.other_layers[0];
  const nbytes = sum(others.map((each) => each[1])) + profile.other_layers[1];
  return [bars(rows, bytesText), count ? element("p", { class: "note" }, `and ${plural(count, "other layer")} with ${bytesText(nbytes)}`) : null];
}

function tensorsOf(profile) {
  if (!profile.tensors.length) return empty("No tensors", "The compiler has named none at the peak.");
  const columns = [
    { name: "bytes", value: (t) => t[1], text: (t) => bytesText(t[1]), right: true },
    { name: "layer", value: (t) => t[2] || "–", text: (t) => (t[2] ? t[2] + (t[6] ? " (inferred)" : "") : "–") },
    { name: "role", value: (t) => t[7] || "–" },
    { name: "shape", value: (t) => t[4] },
    { name: "tensor", value: (t) => (t[3] === "parameter" || !t[3] ? t[0] : t[5] || `${t[3]} ${t[0]}`) },
  ];
  const [count, nbytes] = profile.other_tensors;
  return [
    table(columns, profile.tensors, { name: "Tensors at the peak", sorted: 0, filter: "Filter by layer, shape or name", shown: 20 }),
    count ? element("p", { class: "note" }, `and ${plural(count, "smaller tensor")} with ${bytesText(nbytes)}`) : null,
  ];
}

// What memory reports and budgets have said.
function beforehand(run) {
  const { reports, budgets } = run.memory;
  if (!reports.length && !budgets.length) return null;
  return section(
    "Reports and budgets",
    "",
    reports.map((report) => [
      element("p", {}, element("b", {}, element("bdi", {}, report.model)), `, batches of ${report.batch}: ${report.verdict}`),
      report.changes.length
        ? table(
            [
              { name: "peak", value: (c) => number(c.peak), unit: "bytes", text: (c) => bytesText(number(c.peak)), right: true },
              { name: "more FLOPs", value: (c) => number(c.extra_flops), text: (c) => shareText(number(c.extra_flops)), right: true },
              { name: "fits", value: (c) => (c.fits ? "yes" : "no") },
              { name: "change", value: (c) => c.code, wide: true },
            ],
            report.changes,
            { name: "Changes" },
          )
        : null,
    ]),
    budgets.map((budget) =>
      element("p", {}, element("b", {}, element("bdi", {}, budget.model)), ` has a budget of ${budget.budget <= 1 ? shareText(budget.budget) + " of training without one" : bytesText(number(budget.budget))}: ${bytesText(number(budget.peak_bytes))} at the peak, recomputed: ${budget.choice || "nothing"}.`),
    ),
  );
}
