// One box with details beside the pointer, for all charts.

const tooltip = element("div", { class: "tooltip", role: "status", hidden: true });

// Shows lines of text: strings, or pairs of a name and a value.
function showTooltip(x, y, title, lines) {
  tooltip.replaceChildren(
    element("strong", {}, title),
    element(
      "dl",
      {},
      lines
        .filter((line) => line)
        .map(([name, value, background]) => [
          element("dt", {}, background ? element("i", { style: { background } }) : null, name),
          element("dd", {}, value),
        ]),
    ),
  );
  tooltip.hidden = false;
  const box = tooltip.getBoundingClientRect();
  const wide = document.documentElement.clientWidth;
  const high = window.innerHeight;
  const left = x + 14 + box.width > wide - 6 ? x - box.width - 14 : x + 14;
  const top = y + 14 + box.height > high - 6 ? y - box.height - 10 : y + 14;
  tooltip.style.left = `${Math.max(left, 6)}px`;
  tooltip.style.top = `${Math.max(top, 6)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}
