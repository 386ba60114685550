// Tables: sorted by a click on a head, filtered by a word, long ones in parts.

const SHOWN = 60; // rows at first

// columns: [{name, unit of the value, value(row), text(row), cell(row), right, wide}]; rows: anything.
function table(columns, rows, { name, sorted = null, descending = true, filter = null, shown = SHOWN, chosen = null } = {}) {
  let limit = shown;
  let word = "";
  const body = element("tbody");
  const heads = columns.map((column, k) => headOf(column, k));
  const more = element("button", { type: "button", class: "more", onclick: () => ((limit = limit * 10), refill()) });
  const count = element("span", { class: "note", "aria-live": "polite" });

  function headOf(column, k) {
    const head = element("th", { scope: "col", class: column.right ? "right" : "" });
    if (!column.value) {
      head.append(column.name);
      return head;
    }
    const button = element("button", { type: "button" }, column.name);
    button.addEventListener("click", () => {
      descending = sorted === k ? !descending : Boolean(column.right);
      sorted = k;
      refill();
    });
    head.append(button);
    return head;
  }

  function visible() {
    let found = rows;
    if (word) found = found.filter((row) => columns.some((column) => textOf(column, row).toLowerCase().includes(word)));
    if (sorted === null) return found;
    const value = columns[sorted].value;
    const sign = descending ? -1 : 1;
    return [...found].sort((a, b) => sign * compared(value(a), value(b)));
  }

  function refill() {
    const found = visible();
    heads.forEach((head, k) => {
      if (!columns[k].value) return;
      head.setAttribute("aria-sort", sorted !== k ? "none" : descending ? "descending" : "ascending");
    });
    body.replaceChildren(
      ...found.slice(0, limit).map((row) =>
        element(
          "tr",
          chosen ? { class: "choosable", onclick: () => chosen(row) } : {},
          columns.map((column) =>
            element(
              "td",
              { class: [column.right ? "right" : "", column.wide ? "wide" : column.middle ? "middle" : ""].join(" ").trim() },
              column.cell ? column.cell(row) : element("bdi", {}, textOf(column, row)),
            ),
          ),
        ),
      ),
    );
    more.hidden = found.length <= limit;
    more.textContent = `Show more: ${exactText(Math.min(limit, found.length))} of ${exactText(found.length)} rows are shown`;
    count.textContent = word ? plural(found.length, "row") : "";
  }

  refill();
  const search = filter
    ? element("div", { class: "bar" },
        element("input", {
          type: "search",
          placeholder: filter,
          "aria-label": filter,
          oninput: (event) => {
            word = event.target.value.trim().toLowerCase();
            refill();
          },
        }), count)
    : null;
  return element(
    "div",
    { class: "table" },
    search,
    element("div", { class: "scroll" },
      element("table", { "aria-label": name }, element("thead", {}, element("tr", {}, heads)), body)),
    element("div", { class: "bar below" }, more, element("button", { type: "button", class: "csv", onclick: () => download(name, csvOf(columns, visible())) }, "Download as CSV")),
  );
}

// Rows as comma-separated values: numbers as they are, whatever else as it is shown.
function csvOf(columns, rows) {
  // What a spreadsheet would take for a formula becomes text.
  const quoted = (text) => `"${text.replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`;
  const shown = columns.filter((column) => column.name || !column.cell);
  const heads = shown.map((column) => quoted(column.name + (column.unit ? ` (${column.unit})` : "")));
  const cell = (column, row) => {
    const value = column.right && column.value ? column.value(row) : null;
    return typeof value !== "number" ? quoted(textOf(column, row)) : Number.isNaN(value) ? "" : value;
  };
  return [heads, ...rows.map((row) => shown.map((column) => cell(column, row)))].map((line) => line.join()).join("\r\n");
}

function download(name, text) {
  const link = element("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${name}.csv` });
  link.click();
  URL.revokeObjectURL(link.href);
}

function textOf(column, row) {
  return String((column.text ?? column.value)(row) ?? "");
}

// Numbers by size, NaN last; texts by their order.
function compared(a, b) {
  if (typeof a === "number" && typeof b === "number") {
    if (Number.isNaN(a) || Number.isNaN(b)) return Number.isNaN(a) - Number.isNaN(b) || 0;
    return a === b ? 0 : a < b ? -1 : 1;
  }
  return String(a).localeCompare(String(b), undefined, { numeric: true });
}

// A bar of parts: [{name, value, color}], with a line of words under it.
function shareBar(parts, total, text) {
  return element(
    "div",
    { class: "shares" },
    element(
      "div",
      { class: "sharebar", role: "img", "aria-label": parts.map((part) => `${part.name} ${shareText(part.value / total)}`).join(", ") },
      parts.map((part) =>
        element("i", {
          title: `${part.name}: ${text(part.value)}, ${shareText(part.value / total)}`,
          style: { background: part.color, width: `${Math.max((part.value / total) * 100, 0)}%` },
        }),
      ),
    ),
    element(
      "div",
      { class: "legend" },
      parts.map((part) => swatch(part.color, [part.name, " ", element("b", {}, shareText(part.value / total)), " ", element("span", { class: "note" }, text(part.value))])),
    ),
  );
}

// Bars, one below the other: [{name, title, parts: [{name, value, color}]}].
function bars(rows, text) {
  const most = Math.max(...rows.map((row) => sum(row.parts.map((part) => part.value))), 0);
  return element(
    "div",
    { class: "bars" },
    rows.map((row) => {
      const total = sum(row.parts.map((part) => part.value));
      return [
        element("bdi", { class: "name", title: row.name }, row.name),
        element(
          "span",
          { class: "line" },
          row.parts.map((part) =>
            element("i", {
              title: `${row.name}, ${part.name}: ${text(part.value)}`,
              style: { background: part.color, width: `${most > 0 ? (part.value / most) * 100 : 0}%` },
            }),
          ),
        ),
        element("span", { class: "value" }, text(total)),
      ];
    }),
  );
}
