// The part of the time that a timeline shows. Several timelines may share one.

class View {
  constructor(first, last) {
    this.first = first;
    this.last = last > first ? last : first + 1;
    this.listeners = [];
    this.whole();
  }

  get length() {
    return this.to - this.from;
  }

  show(from, to) {
    const whole = this.last - this.first;
    const length = Math.min(Math.max(to - from, whole * 1e-7), whole);
    this.from = Math.min(Math.max(from, this.first), this.last - length);
    this.to = this.from + length;
    for (const listener of this.listeners) listener();
  }

  whole() {
    this.from = this.first;
    this.to = this.last;
    for (const listener of this.listeners) listener();
  }

  get isWhole() {
    return this.length >= (this.last - this.first) * (1 - 1e-9);
  }

  // Makes the time under the pointer stay where it is. Below 1 it shows less.
  zoom(factor, at = (this.from + this.to) / 2) {
    const left = (at - this.from) * factor;
    this.show(at - left, at - left + this.length * factor);
  }

  pan(share) {
    this.show(this.from + share * this.length, this.to + share * this.length);
  }
}

// Moments to label: 1, 2 or 5 times a power of ten apart.
function ticks(from, to, most) {
  const length = to - from;
  if (!(length > 0) || !Number.isFinite(length)) return [];
  const power = 10 ** Math.floor(Math.log10(length / most));
  const step = [1, 2, 5, 10].map((m) => m * power).find((size) => length / size <= most) ?? power * 10;
  const found = [];
  for (let k = Math.ceil(from / step); k * step <= to && found.length < 100; k++) found.push(k * step);
  return found;
}
