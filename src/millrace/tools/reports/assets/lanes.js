// Lanes: spans of time that do not overlap, in order, found by binary search.
//
// Of each style a lane knows the time that lies before a span. So the shares of any stretch of time
// are two searches away, however many spans are in it.

class Lane {
  constructor(starts, ends, styles, items, styleCount) {
    this.starts = starts;
    this.ends = ends;
    this.styles = styles;
    this.items = items; // numbers, by which a row knows its spans
    this.before = Array.from({ length: styleCount }, () => new Float64Array(starts.length + 1));
    for (let style = 0; style < styleCount; style++) {
      const before = this.before[style];
      for (let i = 0; i < starts.length; i++) {
        before[i + 1] = before[i] + (styles[i] === style ? ends[i] - starts[i] : 0);
      }
    }
  }

  get length() {
    return this.starts.length;
  }

  // The first span that ends after a moment.
  endingAfter(time, low = 0) {
    // From `low` on in steps that double: mostly it is near.
    let step = 1;
    while (low + step <= this.length && this.ends[low + step - 1] <= time) step *= 2;
    let high = Math.min(low + step - 1, this.length);
    low += step >> 1;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (this.ends[middle] > time) high = middle;
      else low = middle + 1;
    }
    return low;
  }

  // The span at a moment; -1 if there is none.
  at(time) {
    const i = this.endingAfter(time);
    return i < this.length && this.starts[i] <= time ? i : -1;
  }

  // The time of a style until a moment.
  timeOf(style, time, i = this.endingAfter(time)) {
    let total = this.before[style][i];
    if (i < this.length && this.styles[i] === style && this.starts[i] < time) total += time - this.starts[i];
    return total;
  }

  // The share of each style between two moments.
  shares(from, to) {
    const i = this.endingAfter(from);
    const j = this.endingAfter(to, i);
    return this.before.map((_, style) => (this.timeOf(style, to, j) - this.timeOf(style, from, i)) / (to - from));
  }
}

// Spans in as few lanes as they need, at most `most`: what overlaps goes one lane down.
function lanesOf(starts, ends, styles, styleCount, most = 4) {
  const order = Uint32Array.from(starts, (_, i) => i).sort((a, b) => starts[a] - starts[b] || a - b);
  const lanes = [];
  const tails = [];
  for (const i of order) {
    let lane = tails.findIndex((tail) => tail <= starts[i] + 1e-12);
    if (lane < 0 && lanes.length < most) {
      lane = lanes.push([]) - 1;
      tails.push(-Infinity);
    }
    if (lane < 0) lane = tails.indexOf(Math.min(...tails));
    lanes[lane].push(i);
    tails[lane] = Math.max(ends[i], tails[lane]);
  }
  return lanes.map((items) => {
    const count = items.length;
    const lane = { starts: new Float64Array(count), ends: new Float64Array(count), styles: new Uint8Array(count) };
    for (let k = 0; k < count; k++) {
      // Where no lane was free, a span begins when the one before it ends.
      lane.starts[k] = k ? Math.max(starts[items[k]], lane.ends[k - 1]) : starts[items[k]];
      lane.ends[k] = Math.max(ends[items[k]], lane.starts[k]);
      lane.styles[k] = styles[items[k]];
    }
    return new Lane(lane.starts, lane.ends, lane.styles, Uint32Array.from(items), styleCount);
  });
}
