// Data of a comparison: what the program wrote into the page, decoded into arrays.

/** Codes of the program's `encode.rs`: 0 is zero, the others are on a logarithmic scale. */
const CODES = 65534;
/** Tracks of the shares of time at gates have this before the gate's name. */
const GATE = "gate.";

/** Values of a track: a number if all are the same, else codes of 16 bits in base64. */
function decodeValues(coded, count) {
  const values = new Float64Array(count);
  if (typeof coded === "number") {
    return values.fill(coded);
  }
  const bytes = atob(coded.codes);
  const step = Math.log(coded.most / coded.least) / CODES;
  for (let index = 0; index < count; index += 1) {
    const code = bytes.charCodeAt(2 * index) | (bytes.charCodeAt(2 * index + 1) << 8);
    values[index] = code === 0 ? 0 : coded.least * Math.exp(step * (code - 1));
  }
  return values;
}

/** Times of the samples: they are regular, but the last interval may be shorter. */
function decodeTimes({ first, step, last, count }) {
  const times = new Float64Array(count);
  for (let index = 0; index < count; index += 1) {
    times[index] = first + step * index;
  }
  if (count > 0) {
    times[count - 1] = last;
  }
  return times;
}

/** A run with arrays instead of codes. They are decoded when they are first looked at. */
class Run {
  constructor(raw) {
    this.name = raw.name;
    this.role = raw.role;
    this.at = raw.at;
    this.shares = raw.shares;
    this.explained = raw.explained;
    this.raw = raw;
    this.decoded = new Map();
  }

  get times() {
    this.decodedTimes ??= decodeTimes(this.raw.times);
    return this.decodedTimes;
  }

  /** All tracks of a quantity: subject and values. */
  tracks(quantity) {
    const those = this.raw.tracks.filter((track) => track.quantity === quantity);
    return those.map((track) => {
      if (!this.decoded.has(track)) {
        this.decoded.set(track, decodeValues(track.values, this.raw.times.count));
      }
      return { subject: track.subject, values: this.decoded.get(track) };
    });
  }

  /** Values of one subject, or nothing if they are all zero. */
  values(quantity, subject) {
    return this.tracks(quantity).find((track) => track.subject === subject)?.values;
  }

  /** The gate that held a flow for most of a sample's time, and its share of it. */
  gate(subject, index) {
    const gates = this.raw.tracks.filter(
      (track) => track.subject === subject && track.quantity.startsWith(GATE),
    );
    let best = { name: "", share: 0 };
    for (const { quantity } of gates) {
      const share = this.values(quantity, subject)[index];
      best = share > best.share ? { name: quantity.slice(GATE.length), share } : best;
    }
    return best;
  }
}

/** Index of the first value of an ascending array that is greater. */
function firstAfter(ascending, value) {
  let [low, high] = [0, ascending.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ascending[middle] <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

/** Index of the value that is nearest. */
function nearest(ascending, value) {
  const after = firstAfter(ascending, value);
  if (after === 0) {
    return 0;
  }
  const isLast = after === ascending.length;
  return isLast || value - ascending[after - 1] <= ascending[after] - value ? after - 1 : after;
}

/**
 * The samples between two places, at most two for each of `columns` columns: the least and the
 * largest value, in the order in which they came, so that no peak is lost. One sample beyond each
 * end lets a line go to the edge.
 */
function thin(xs, ys, from, to, columns) {
  const begin = Math.max(0, firstAfter(xs, from) - 1);
  const end = Math.min(xs.length, firstAfter(xs, to) + 1);
  if (end - begin <= 2 * columns) {
    return { xs: xs.subarray(begin, end), ys: ys.subarray(begin, end) };
  }
  const [thinX, thinY] = [new Float64Array(2 * columns + 2), new Float64Array(2 * columns + 2)];
  let count = 0;
  const bin = (end - begin) / columns;
  for (let column = 0; column < columns; column += 1) {
    const stop = column === columns - 1 ? end : begin + Math.floor((column + 1) * bin);
    let least = begin + Math.floor(column * bin);
    let most = least;
    for (let index = least + 1; index < stop; index += 1) {
      if (ys[index] < ys[least]) {
        least = index;
      } else if (ys[index] > ys[most]) {
        most = index;
      }
    }
    const [one, two] = least < most ? [least, most] : [most, least];
    thinX[count] = xs[one];
    thinY[count] = ys[one];
    thinX[count + 1] = xs[two];
    thinY[count + 1] = ys[two];
    count += 2;
  }
  return { xs: thinX.subarray(0, count), ys: thinY.subarray(0, count) };
}

/** Means of about so many parts of what is between two places: rates as they are from afar. */
function thinRates(xs, ys, from, to, parts) {
  const begin = Math.max(0, firstAfter(xs, from) - 1);
  const end = Math.min(xs.length, firstAfter(xs, to) + 1);
  const size = Math.max(1, Math.floor((end - begin) / parts));
  const [thinX, thinY] = [[], []];
  for (let start = begin; start < end; start += size) {
    const stop = Math.min(end, start + size);
    let sum = 0;
    for (let index = start; index < stop; index += 1) {
      sum += ys[index];
    }
    thinX.push((xs[start] + xs[stop - 1]) / 2);
    thinY.push(sum / (stop - start));
  }
  return { xs: Float64Array.from(thinX), ys: Float64Array.from(thinY) };
}

/**
 * Layers between two places. For each column it is the sample with the largest total, so that the
 * layers of a column were there at the same time; of shares, which have all the same total, the
 * mean.
 */
function thinLayers(xs, layers, from, to, columns, isMean) {
  const begin = Math.max(0, firstAfter(xs, from) - 1);
  const end = Math.min(xs.length, firstAfter(xs, to) + 1);
  const picked = [];
  const bin = Math.max(1, (end - begin) / columns);
  const total = (index) => layers.reduce((sum, ys) => sum + ys[index], 0);
  for (let column = 0; begin + Math.floor(column * bin) < end; column += 1) {
    const start = begin + Math.floor(column * bin);
    const stop = Math.min(end, begin + Math.floor((column + 1) * bin));
    let best = start;
    let most = isMean ? Infinity : total(start);
    for (let index = start + 1; index < stop && !isMean; index += 1) {
      const here = total(index);
      [best, most] = here > most ? [index, here] : [best, most];
    }
    picked.push({ best, start, stop });
  }
  // Layers begin and end where the samples do.
  if (picked.length > 1) {
    picked[0].best = begin;
    picked[picked.length - 1].best = end - 1;
  }
  const mean = (ys, { start, stop }) => {
    let sum = 0;
    for (let index = start; index < stop; index += 1) {
      sum += ys[index];
    }
    return sum / (stop - start);
  };
  const take = (ys) => Float64Array.from(picked, (one) => (isMean ? mean(ys, one) : ys[one.best]));
  return { xs: Float64Array.from(picked, ({ best }) => xs[best]), layers: layers.map(take) };
}
