// Colours: those of the page come from its style sheet, in light and in dark.

const COLORS = ["#3a67b1", "#c9822b", "#12805f", "#a5459b", "#2f9fb5", "#b8433f", "#7a6fd0", "#7a8a3a"];
const ROLE_COLORS = {
  parameters: "#6b8199",
  optimizer: "#a58bc9",
  accumulators: "#e0a84f",
  batches: "#4fb3ba",
  activations: "#3f8f6b",
  gradients: "#4a7cc7",
  other: "#b3bac4",
};
const PASS_COLORS = {
  forward: "#12805f",
  backward: "#3a67b1",
  recomputation: "#c9822b",
  accumulation: "#e0a84f",
  update: "#8a5fb0",
  "": "#98a2ae",
};
const ORIGIN_COLORS = {
  compiled: "#b8433f",
  cache: "#12805f",
  shared: "#3a67b1",
  loaded: "#2f9fb5",
  switch: "#98a2ae",
};
const dark = window.matchMedia("(prefers-color-scheme: dark)");

let styleOfPage = null;

// A colour of the style sheet: color("--ink").
function color(name) {
  styleOfPage ??= getComputedStyle(document.documentElement);
  return styleOfPage.getPropertyValue(name).trim();
}

function roleColor(role) {
  return ROLE_COLORS[role] ?? "#b3bac4";
}

function passColor(kind) {
  return PASS_COLORS[kind] ?? COLORS[hashOf(kind) % COLORS.length];
}

function hashOf(text) {
  let value = 7;
  for (let i = 0; i < text.length; i++) value = (value * 31 + text.charCodeAt(i)) >>> 0;
  return value;
}

// Black or white, whichever can be read on a colour.
function inkOn(background) {
  const value = Number.parseInt(background.slice(1), 16);
  const light = 0.299 * (value >> 16) + 0.587 * ((value >> 8) & 255) + 0.114 * (value & 255);
  return light > 150 ? "#14202b" : "#ffffff";
}

// [red, green, blue] of "#3a67b1".
function channels(text) {
  const value = Number.parseInt(text.slice(1), 16);
  return [value >> 16, (value >> 8) & 255, value & 255];
}

function swatch(background, text) {
  return element("span", { class: "swatch" }, element("i", { style: { background } }), text);
}
