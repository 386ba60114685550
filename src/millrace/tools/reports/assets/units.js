// Numbers as people read them, with their units.

function scaled(value, units, step, digits = 3) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  let size = Math.abs(value);
  let unit = 0;
  while (size >= step * 0.9995 && unit < units.length - 1) {
    size /= step;
    unit += 1;
  }
  const whole = unit === 0 && Number.isInteger(value);
  const text = whole ? String(size) : size >= 1e6 ? size.toExponential(2) : size.toPrecision(digits);
  const plain = text.includes("e") && size < 1e6 ? String(Number(text)) : text;
  return `${value < 0 ? "−" : ""}${plain}${units[unit] ? " " + units[unit] : ""}`;
}

// 1 KB = 1000 bytes, as everywhere in millrace.
const bytesText = (value) => scaled(value, ["B", "KB", "MB", "GB", "TB", "PB"], 1000);
const countText = (value) => scaled(value, ["", "K", "M", "G", "T", "P", "E"], 1000);
const flopsText = (value) =>
  scaled(value, ["FLOP", "KFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"], 1000);

function secondsText(value) {
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return scaled(value, ["s"], 1000);
  if (size === 0) return "0 s";
  if (size >= 86400) return `${(value / 86400).toPrecision(3)} d`;
  if (size >= 7200) return `${(value / 3600).toPrecision(3)} h`;
  if (size >= 120) return `${(value / 60).toPrecision(3)} min`;
  if (size >= 0.9995) return `${value.toPrecision(3)} s`;
  if (size >= 0.9995e-3) return `${(value * 1e3).toPrecision(3)} ms`;
  if (size >= 0.9995e-6) return `${(value * 1e6).toPrecision(3)} µs`;
  return `${(value * 1e9).toPrecision(3)} ns`;
}

// Moments of an axis: no zeros that say nothing.
function momentText(value) {
  return secondsText(value).replace(/(\.\d*?)0+(?= )/, "$1").replace(/\.(?= )/, "");
}

function shareText(value) {
  if (!Number.isFinite(value)) return "–";
  return `${(value * 100).toFixed(Math.abs(value) < 0.0995 && value !== 0 ? 1 : 0)} %`;
}

function exactText(value) {
  return Number.isFinite(value) ? value.toLocaleString("en-US") : scaled(value, [""], 1000);
}

// A number without a unit: a loss, a norm.
function valueText(value) {
  if (!Number.isFinite(value)) return scaled(value, [""], 1000);
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(3);
  return String(Number(value.toPrecision(5)));
}

function dateText(seconds) {
  if (!(seconds > 0) || seconds > 8e12) return "–";
  const date = new Date(seconds * 1000);
  const two = (value) => String(value).padStart(2, "0");
  return (
    `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ` +
    `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`
  );
}

function plural(count, noun, nouns = `${noun}s`) {
  return `${exactText(count)} ${count === 1 ? noun : nouns}`;
}
