// The data of the page: JSON at once, columns of numbers after they are decompressed.

const DATA = JSON.parse(document.getElementById("data").textContent);
const ARRAYS = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };
let columnBytes = new ArrayBuffer(0);

async function loadColumns() {
  const text = atob(document.getElementById("columns").textContent.trim());
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  if (typeof DecompressionStream === "undefined") {
    throw new Error("This browser is too old for the numbers of the page: take one of 2023 or newer.");
  }
  const plain = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  columnBytes = await new Response(plain).arrayBuffer();
}

// The numbers of a column, as a typed array; or its texts.
function column(reference) {
  if (reference.type === "json") {
    return JSON.parse(new TextDecoder().decode(new Uint8Array(columnBytes, reference.at, reference.bytes)));
  }
  return new ARRAYS[reference.type](columnBytes, reference.at, reference.count);
}

// A number of a record: JSON has no NaN and no infinities, so these come as text.
function number(value) {
  if (value === null || value === undefined) return NaN;
  if (typeof value === "number") return value;
  return { nan: NaN, inf: Infinity, "-inf": -Infinity }[value] ?? NaN;
}

function sum(values) {
  let total = 0;
  for (const value of values) total += value;
  return total;
}

// The items by key, in the order in which the keys came.
function grouped(items, keyOf) {
  const groups = new Map();
  for (const item of items) {
    const key = keyOf(item);
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(item);
  }
  return groups;
}
