// Elements of the page. Text comes in as text nodes only: markup in a name stays text.

function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name === "style") Object.assign(made.style, value);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

// Puts something else into an element; null and nested lists are as in `element`.
function fill(host, ...children) {
  host.replaceChildren(...children.flat(4).filter((child) => child !== null && child !== undefined && child !== false));
}

function section(title, note, ...content) {
  return element(
    "section",
    { class: "card" },
    title && element("h2", {}, title, note ? element("span", { class: "note" }, note) : null),
    ...content,
  );
}

// What would fill a place that is empty.
function empty(title, text, code) {
  return element(
    "div",
    { class: "empty" },
    element("h3", {}, title),
    element("p", {}, text),
    code ? element("pre", {}, code) : null,
  );
}

// Facts as large numbers with words below.
function facts(entries) {
  return element(
    "dl",
    { class: "facts" },
    entries
      .filter((entry) => entry)
      .map(([name, value, note]) =>
        element("div", {}, element("dt", {}, name), element("dd", { title: note }, value)),
      ),
  );
}

function select(label, options, chosen, onchange) {
  const list = element(
    "select",
    { onchange: (event) => onchange(Number(event.target.value)) },
    options.map((text, i) => element("option", { value: i, selected: i === chosen }, text)),
  );
  return element("label", { class: "control" }, element("span", {}, label), list);
}

// Buttons of which one is pressed.
function choice(label, options, chosen, onchange) {
  const group = element("div", { class: "choice", role: "group", "aria-label": label });
  options.forEach((text, i) => {
    const button = element("button", { type: "button", "aria-pressed": String(i === chosen) }, text);
    button.addEventListener("click", () => {
      for (const each of group.children) each.setAttribute("aria-pressed", String(each === button));
      onchange(i);
    });
    group.append(button);
  });
  return group;
}
