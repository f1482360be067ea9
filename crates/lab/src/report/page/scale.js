// Numbers in words, ticks, axes and scales.

/** Three digits that count, without zeros that say nothing. */
function digits(value) {
  const size = Math.abs(value);
  if (size === 0) {
    return "0";
  }
  if (size >= 100) {
    return value.toFixed(0);
  }
  if (size < 1e-4) {
    return value.toExponential(1);
  }
  return String(Number(value.toPrecision(3)));
}

const PREFIXES = [
  [1e9, "G"],
  [1e6, "M"],
  [1e3, "k"],
];

/** A value with its unit, as people say it. */
function spoken(value, unit) {
  if (unit === "share") {
    return `${digits(value * 100)} %`;
  }
  if (unit === "ms" && Math.abs(value) >= 1000) {
    return `${digits(value / 1000)} s`;
  }
  if (unit === "ms" && value !== 0 && Math.abs(value) < 0.1) {
    return `${digits(value * 1000)} µs`;
  }
  if (unit === "bytes" || unit === "per second") {
    const [divisor, prefix] = PREFIXES.find(([size]) => Math.abs(value) >= size) ?? [1, ""];
    const name = unit === "bytes" ? `${prefix === "k" ? "K" : prefix}B` : `${prefix}/s`;
    return `${digits(value / divisor)} ${name}`;
  }
  return `${digits(value)} ${unit}`;
}

/** Whether a unit has room beside the numbers of an axis. */
function isShort(unit) {
  return ["share", "ms", "bytes", "per second"].includes(unit);
}

/** Round values of a linear scale, about so many. */
function linearTicks(from, to, about) {
  const rough = (to - from) / about;
  if (!(rough > 0)) {
    return [from];
  }
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
  const ticks = [];
  for (let index = Math.ceil(from / step - 1e-9); index * step <= to * (1 + 1e-9); index += 1) {
    ticks.push(index * step);
  }
  return ticks;
}

/** Powers of ten; of few decades also what is between, of many not all. */
function logTicks(from, to, about) {
  const [first, last] = [Math.floor(Math.log10(from)), Math.ceil(Math.log10(to))];
  const skip = Math.max(1, Math.ceil((last - first) / about));
  const between = last - first <= 2 ? [1, 2, 5] : [1];
  const ticks = [];
  for (let power = first; power <= last; power += skip) {
    between.forEach((factor) => ticks.push(factor * 10 ** power));
  }
  return ticks.filter((tick) => tick >= from * 0.999 && tick <= to * 1.001);
}

/** From values to places in a drawing, and back. */
class Scale {
  constructor(from, to, isLog, start, length) {
    Object.assign(this, { from, to, isLog, start, length });
    this.low = isLog ? Math.log(from) : from;
    this.span = (isLog ? Math.log(to) : to) - this.low || 1;
  }

  /** What is below a logarithmic scale, zero too, is at its edge. */
  place(value) {
    const own = this.isLog ? Math.log(Math.max(value, this.from)) : value;
    return this.start + ((own - this.low) / this.span) * this.length;
  }

  value(place) {
    const own = this.low + ((place - this.start) / this.length) * this.span;
    return this.isLog ? Math.exp(own) : own;
  }

  ticks(about) {
    return this.isLog
      ? logTicks(this.from, this.to, about)
      : linearTicks(this.from, this.to, about);
  }
}

/**
 * Horizontal axis that charts share: what of it is seen, and where the cursor is. It tells its
 * listeners what has changed: "range" or "cursor".
 */
class Axis {
  constructor(from, to, isLog, unit) {
    Object.assign(this, { full: [from, to], from, to, isLog, unit, listeners: [] });
    this.cursor = isLog ? Math.sqrt(from * to) : (from + to) / 2;
  }

  tell(what) {
    this.listeners.forEach((listener) => listener(what));
  }

  /** Shows a part; all of it if the part is nothing. */
  show(from, to) {
    const [first, last] = this.full;
    const [low, high] = [Math.max(first, Math.min(from, to)), Math.min(last, Math.max(from, to))];
    if (high > low) {
      [this.from, this.to] = [low, high];
      this.cursor = Math.min(high, Math.max(low, this.cursor));
      this.tell("range");
      this.tell("cursor");
    }
  }

  reset() {
    this.show(...this.full);
  }

  /** Shows more or less around the cursor. */
  zoom(factor) {
    const scale = new Scale(this.from, this.to, this.isLog, 0, 1);
    const at = scale.place(this.cursor);
    this.show(scale.value(at - at * factor), scale.value(at + (1 - at) * factor));
  }

  /** Moves the cursor, and what is seen with it. */
  point(at) {
    const [first, last] = this.full;
    this.cursor = Math.min(last, Math.max(first, at));
    if (this.cursor < this.from || this.cursor > this.to) {
      const half = (this.to - this.from) / 2;
      const middle = Math.min(last - half, Math.max(first + half, this.cursor));
      [this.from, this.to] = [middle - half, middle + half];
      this.tell("range");
    }
    this.tell("cursor");
  }
}
