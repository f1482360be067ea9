// One chart: lines or layers over an axis that it shares with others.

const SVG = "http://www.w3.org/2000/svg";
/** Heights of charts, of those of shares, and of all where there is little room, in pixels. */
const [HEIGHT, LOW, SMALL] = [150, 90, 110];
/** Width of the page that is little room. */
const NARROW = 640;
/** Room for the numbers of a chart. */
const [LEFT, RIGHT, TOP, BOTTOM] = [50, 8, 6, 20];
/** Pixels for each mean of a rate. */
const RATE = 4;
/** A drag that is shorter, in pixels, is a click. */
const CLICK = 5;

function element(name, attributes = {}, children = []) {
  const made = document.createElement(name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  made.append(...children);
  return made;
}

function drawn(name, attributes = {}) {
  const made = document.createElementNS(SVG, name);
  Object.entries(attributes).forEach(([key, value]) => made.setAttribute(key, value));
  return made;
}

/** A path through points. */
function path(xs, ys, x, y) {
  let text = "";
  for (let index = 0; index < xs.length; index += 1) {
    const [across, up] = [x.place(xs[index]).toFixed(1), y.place(ys[index]).toFixed(1)];
    text += `${index === 0 ? "M" : "L"}${across} ${up}`;
  }
  return text;
}

/** `series` are `{ name, colour, xs, ys }`; `kind` is "lines", "rates" or "layers". */
class Chart {
  constructor({ title, about, series, kind, axis, unit, hidden, toggle }) {
    Object.assign(this, { title, about, series, kind, axis, unit, hidden, toggle });
    this.grid = drawn("g", { class: "grid" });
    this.lines = drawn("g");
    this.selection = drawn("rect", { class: "selection", y: 0, height: HEIGHT, width: 0 });
    this.cursor = drawn("path", { class: "cursor" });
    this.plot = drawn("svg", { x: LEFT, y: TOP, overflow: "hidden" });
    this.plot.append(this.lines, this.selection, this.cursor);
    this.svg = drawn("svg", { class: "chart", role: "img", tabindex: 0 });
    this.svg.append(this.grid, this.plot);
    this.keys = series.map((one) => this.key(one));
    const caption = element("figcaption", {}, [title]);
    const keys = element(
      "div",
      { class: "keys" },
      this.keys.map((key) => key.button),
    );
    this.figure = element("figure", { class: "panel" }, [caption, this.svg, keys]);
    this.listen();
  }

  /** Legend of one series: it reads the value at the cursor, and hides the series. */
  key(one) {
    const value = element("b");
    const swatch = element("i", { "aria-hidden": "true" });
    swatch.style.background = `var(${one.colour})`;
    const button = element("button", { type: "button", class: "key" }, [
      swatch,
      `${one.name} `,
      value,
    ]);
    button.addEventListener("click", () => this.toggle(one.name));
    return { button, value };
  }

  get shown() {
    return this.series.filter((one) => !this.hidden.has(one.name));
  }

  get isStacked() {
    return this.kind === "layers" && !this.isLog;
  }

  /** Gathers what is to be drawn. Returns the least positive and the largest value of it. */
  gather(isLog) {
    this.isLog = isLog;
    // What is folded has no width.
    this.width = Math.max(
      160,
      Math.floor(this.figure.getBoundingClientRect().width) || this.width || 320,
    );
    const most = window.innerWidth < NARROW ? SMALL : HEIGHT;
    this.height = this.kind === "layers" && this.unit === "share" ? LOW : most;
    const columns = this.width - LEFT - RIGHT;
    const { from, to } = this.axis;
    const shown = this.shown;
    if (this.isStacked && shown.length > 0) {
      const layers = shown.map((one) => one.ys);
      const thinned = thinLayers(shown[0].xs, layers, from, to, columns, this.unit === "share");
      let below = new Float64Array(thinned.xs.length);
      this.drawings = shown.map((one, index) => {
        const top = thinned.layers[index].map((value, place) => value + below[place]);
        const drawing = { one, xs: thinned.xs, ys: top, floor: below };
        below = top;
        return drawing;
      });
    } else {
      const isRate = this.kind === "rates";
      const own = ({ xs, ys }) =>
        isRate ? thinRates(xs, ys, from, to, columns / RATE) : thin(xs, ys, from, to, columns);
      this.drawings = shown.map((one) => ({ one, ...own(one) }));
    }
    let [low, high] = [Infinity, 0];
    for (const { ys } of this.drawings) {
      for (const value of ys) {
        high = Math.max(high, value);
        low = value > 0 ? Math.min(low, value) : low;
      }
    }
    return [low, high];
  }

  /** Draws what was gathered, on a vertical scale of these ends. */
  paint(least, most) {
    const { width, axis } = this;
    const [across, up] = [width - LEFT - RIGHT, this.height - TOP - BOTTOM];
    this.svg.setAttribute("viewBox", `0 0 ${width} ${this.height}`);
    this.plot.setAttribute("width", across);
    this.plot.setAttribute("height", up);
    this.x = new Scale(axis.from, axis.to, axis.isLog, 0, across);
    this.y = new Scale(least, most, this.isLog, up, -up);
    this.paintGrid(across, up);
    const paths = this.drawings.map(({ one, xs, ys, floor }) => {
      let text = path(xs, ys, this.x, this.y);
      if (floor) {
        text +=
          path([...xs].reverse(), [...floor].reverse(), this.x, this.y).replace("M", "L") + "Z";
      }
      const made = drawn("path", { class: floor ? "layer" : "line", d: text });
      made.style.setProperty("--colour", `var(${one.colour})`);
      return made;
    });
    this.lines.replaceChildren(...paths);
    this.series.forEach((one, index) => {
      this.keys[index].button.setAttribute("aria-pressed", String(!this.hidden.has(one.name)));
    });
    this.svg.setAttribute("aria-label", this.describe());
    this.mark();
  }

  paintGrid(across, up) {
    const parts = [];
    for (const tick of this.y.ticks(up > LOW ? 4 : 3)) {
      const at = TOP + this.y.place(tick);
      parts.push(drawn("path", { d: `M${LEFT} ${at.toFixed(1)}h${across}` }));
      const text = drawn("text", { x: LEFT - 5, y: at + 4, class: "end" });
      text.textContent = this.label(tick, this.unit, this.y);
      parts.push(text);
    }
    const ticks = this.x.ticks(Math.max(2, Math.floor(across / 55)));
    for (const tick of ticks) {
      const at = LEFT + this.x.place(tick);
      parts.push(drawn("path", { d: `M${at.toFixed(1)} ${TOP}v${up}` }));
      const text = drawn("text", {
        x: Math.min(at, LEFT + across - 12),
        y: this.height - 5,
        class: "middle",
      });
      text.textContent = this.label(tick, this.axis.unit, this.x);
      parts.push(text);
    }
    this.grid.replaceChildren(...parts);
  }

  /** A number at an axis, with its unit if that is short. */
  label(tick, unit, scale) {
    if (tick === 0) {
      return "0";
    }
    // Numbers of a linear axis have all the same unit.
    if (unit === "ms" && !scale.isLog) {
      return scale.to < 2000 ? `${digits(tick)} ms` : `${digits(tick / 1000)} s`;
    }
    return isShort(unit) ? spoken(tick, unit) : digits(tick);
  }

  /** Places the cursor, and reads the values there. */
  mark() {
    if (!this.x) {
      return;
    }
    const at = this.x.place(this.axis.cursor).toFixed(1);
    this.cursor.setAttribute("d", `M${at} 0V${this.height}`);
    this.series.forEach((one, index) => {
      // Of a rate it is the mean that is drawn.
      const drawing = this.kind === "rates" && this.drawings.find((other) => other.one === one);
      const { xs, ys } = drawing || one;
      const text = spoken(ys[nearest(xs, this.axis.cursor)] ?? 0, this.unit);
      const { value } = this.keys[index];
      if (value.textContent !== text) {
        value.textContent = text;
      }
    });
  }

  /** The chart in words. */
  describe() {
    const range = ({ one, ys, floor }) => {
      const own = floor ? ys.map((value, index) => value - floor[index]) : ys;
      const [least, most] = [
        own.reduce((a, b) => Math.min(a, b), Infinity),
        own.reduce((a, b) => Math.max(a, b), 0),
      ];
      return own.length > 0
        ? `${one.name} from ${spoken(least, this.unit)} to ${spoken(most, this.unit)}`
        : one.name;
    };
    const { from, to, unit } = this.axis;
    const ranges = this.drawings.map(range).join("; ");
    return `${this.about}, ${this.title}, ${spoken(from, unit)} to ${spoken(to, unit)}: ${ranges}`;
  }

  /** Place of a pointer on the axis. */
  at(event) {
    const box = this.svg.getBoundingClientRect();
    return this.x.value((event.clientX - box.left) * (this.width / box.width) - LEFT);
  }

  listen() {
    const { svg, axis } = this;
    let begun;
    svg.addEventListener("pointerdown", (event) => {
      // A finger moves the cursor and scrolls the page: buttons zoom there.
      if (event.button === 0 && event.pointerType !== "touch" && this.x) {
        begun = { x: event.clientX, at: this.at(event) };
        svg.setPointerCapture(event.pointerId);
      }
    });
    svg.addEventListener("pointermove", (event) => {
      if (!this.x) {
        return;
      }
      const at = this.at(event);
      if (begun && Math.abs(event.clientX - begun.x) >= CLICK) {
        const places = [this.x.place(begun.at), this.x.place(at)].sort((a, b) => a - b);
        this.selection.setAttribute("x", places[0]);
        this.selection.setAttribute("width", places[1] - places[0]);
      }
      axis.point(Math.min(axis.to, Math.max(axis.from, at)));
    });
    const end = (event) => {
      const first = begun;
      begun = undefined;
      this.selection.setAttribute("width", 0);
      if (first && event.type === "pointerup" && Math.abs(event.clientX - first.x) >= CLICK) {
        axis.show(first.at, this.at(event));
      }
    };
    svg.addEventListener("pointerup", end);
    svg.addEventListener("pointercancel", end);
    svg.addEventListener("dblclick", () => axis.reset());
    svg.addEventListener("keydown", (event) => this.press(event));
  }

  press(event) {
    const { axis } = this;
    const scale = new Scale(axis.from, axis.to, axis.isLog, 0, 1);
    const step = (event.shiftKey ? 10 : 1) / 100;
    const move = (by) =>
      axis.point(scale.value(Math.min(1, Math.max(0, scale.place(axis.cursor) + by))));
    const actions = {
      ArrowLeft: () => move(-step),
      ArrowRight: () => move(step),
      Home: () => axis.point(axis.from),
      End: () => axis.point(axis.to),
      "+": () => axis.zoom(0.5),
      "-": () => axis.zoom(2),
      0: () => axis.reset(),
      Escape: () => axis.reset(),
    };
    const action = actions[event.key];
    if (action && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      action();
    }
  }
}
