// Draws a lane: spans that are wide enough as boxes, and what is narrower as columns of one pixel
// in which each style has its share of the height. So a hundred thousand spans cost no more than
// the pixels of a row.

const LEAST = 2; // pixels of a box
const scratch = document.createElement("canvas");

let sheet = null; // pixels of one lane, used again by every lane of its size

// The area of one lane on a canvas, in device pixels.
function paintLane(context, lane, look, area, view, highlight) {
  const scale = area.width / view.length;
  const x = (time) => (time - view.from) * scale;
  const boxes = [];
  const inks = look.boxesOnly ? null : inksOf(look);
  let pixels = null;
  let i = lane.endingAfter(view.from);
  let free = 0;
  while (i < lane.length && lane.starts[i] < view.to) {
    if ((lane.ends[i] - lane.starts[i]) * scale >= LEAST) {
      boxes.push(i);
      i += 1;
      continue;
    }
    const column = Math.max(Math.floor(x(lane.starts[i])), free);
    if (column >= area.width) break;
    free = column + 1;
    const to = view.from + free / scale;
    const next = lane.endingAfter(to, i);
    if (inks) {
      pixels ??= clearedSheet(area.width, area.height);
      paintColumn(lane, pixels, inks, area, column, i, next, to - 1 / scale, to);
    }
    i = Math.max(next, i + 1);
  }
  if (pixels) {
    const layer = scratch.getContext("2d");
    layer.putImageData(sheet, 0, 0);
    context.drawImage(scratch, 0, 0, area.width, area.height, area.left, area.top, area.width, area.height);
  }
  for (const box of boxes) paintBox(context, lane, box, look, area, x, highlight);
}

function clearedSheet(width, height) {
  if (!sheet || sheet.width !== width || sheet.height !== height) {
    sheet = new ImageData(width, height);
    if (scratch.width < width) scratch.width = width;
    if (scratch.height < height) scratch.height = height;
    return new Uint32Array(sheet.data.buffer);
  }
  return new Uint32Array(sheet.data.buffer).fill(0);
}

// Colours as pixels have them.
function inksOf(look) {
  look.inks ??= Uint32Array.from(look.styles, (style) => {
    const [red, green, blue] = channels(style.color);
    return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
  });
  return look.inks;
}

// One column of pixels: from the first span in it to the first one that ends after it.
function paintColumn(lane, pixels, inks, area, column, first, next, from, to) {
  const { width, height } = area;
  const whole = (to - from) / height;
  let bottom = height;
  for (let style = 0; style < inks.length && bottom > 0; style++) {
    const time = lane.timeOf(style, to, next) - lane.timeOf(style, from, first);
    if (!(time > 0)) continue;
    // A lone short span stays visible.
    const top = Math.max(bottom - Math.max(Math.round(time / whole), 2), 0);
    for (let y = top; y < bottom; y++) pixels[y * width + column] = inks[style];
    bottom = top;
  }
}

function paintBox(context, lane, i, look, area, x, highlight) {
  const left = Math.max(x(lane.starts[i]), -2);
  const right = Math.min(x(lane.ends[i]), area.width + 2);
  const style = look.styles[lane.styles[i]];
  const gap = right - left > 5 * area.ratio ? area.ratio * 0.75 : 0;
  const width = Math.max(right - left - gap, 1);
  context.fillStyle = style.pattern ? style.pattern(context) : style.color;
  context.fillRect(area.left + left, area.top, width, area.height);
  const item = lane.items[i];
  if (highlight && highlight(item)) {
    context.strokeStyle = color("--ink");
    context.lineWidth = 2 * area.ratio;
    context.strokeRect(area.left + left + area.ratio, area.top + area.ratio, width - 2 * area.ratio, area.height - 2 * area.ratio);
  }
  const visible = Math.min(right, area.width) - Math.max(left, 0);
  if (visible < 14 * area.ratio || area.height < 12 * area.ratio) return;
  const label = look.label(item);
  if (!label) return;
  const size = context.measureText(label).width;
  if (size + 2 * area.ratio > visible) {
    if (!look.clips || visible < 40 * area.ratio) return;
    paintText(context, clipped(context, label, visible - 6 * area.ratio), style.ink, area, Math.max(left, 0) + visible / 2);
    return;
  }
  paintText(context, label, style.ink, area, Math.max(left, 0) + visible / 2);
}

function paintText(context, text, ink, area, middle) {
  context.fillStyle = ink ?? color("--ink-soft");
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.fillText(text, area.left + middle, area.top + area.height / 2 + 0.5);
}

// A text that fits, with an ellipsis.
function clipped(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let low = 0;
  let high = Math.min(text.length, 200);
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (context.measureText(text.slice(0, middle) + "…").width <= width) low = middle;
    else high = middle - 1;
  }
  return low ? text.slice(0, low) + "…" : "";
}

// Diagonal lines on the colour of idle time.
function hatching() {
  let made = null;
  let theme = "";
  return (context) => {
    const now = color("--hatch");
    if (made === null || theme !== now) {
      const tile = document.createElement("canvas");
      tile.width = tile.height = 12;
      const drawing = tile.getContext("2d");
      drawing.strokeStyle = now;
      drawing.lineWidth = 1.5;
      drawing.beginPath();
      for (const shift of [-12, 0, 12]) {
        drawing.moveTo(shift, 12);
        drawing.lineTo(shift + 12, 0);
      }
      drawing.stroke();
      made = context.createPattern(tile, "repeat");
      theme = now;
    }
    return made;
  };
}
