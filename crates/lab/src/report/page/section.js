// A comparison: runs side by side, with one time axis, one cursor and one scale for each quantity.

/** Colours of lines that have no meaning of their own. */
const PALETTE = ["--c0", "--c1", "--c2", "--c3", "--c4", "--c5", "--c6", "--c7"];
/** Those that no role has. */
const OTHERS = ["--c4", "--c7", "--c3", "--c5"];
const LAYERS = {
  unsent: "--unsent",
  qdisc: "--qdisc",
  device: "--device",
  in_flight: "--in-flight",
};
/** Gates have the same colour in all charts; those that are rare have one together. */
const GATES = {
  "congestion window": "--c0",
  pacing: "--c1",
  "small queue": "--c2",
  "receive window": "--c3",
  "send buffer": "--c4",
  "all in flight": "--c5",
  deferral: "--c6",
  "no data": "--unsent",
};
/** A quantity whose runs differ by more gets a logarithmic scale. */
const WIDE = 10;
/** Decades of a logarithmic scale, at the most. */
const DECADES = 4;
/** Least width of a chart with its margin, in pixels. */
const PANEL = 200;
/** Quantities that are open from the beginning, beside where the bytes are. */
const OPEN = 2;
const LAYERED = 4;
/** Explanations that are open from the beginning. */
const SAID = 3;

/** Charts of one quantity: a panel for each run, on one scale. */
class Row {
  constructor({ title, unit, kind }, panels, axis) {
    Object.assign(this, {
      title,
      unit,
      kind,
      axis,
      hidden: new Set(),
      isDirty: true,
      isSeen: false,
    });
    const toggle = (name) => this.toggle(name);
    const own = { kind, axis, unit, about: title, hidden: this.hidden, toggle };
    this.charts = panels.map((panel) => new Chart({ ...panel, ...own }));
    this.isLog = kind !== "layers" && unit !== "share" && this.isWide();
    const words = { type: "button", class: "scale", "aria-pressed": String(this.isLog) };
    this.button = element("button", words, ["log scale"]);
    this.button.addEventListener("click", () => {
      this.isLog = !this.isLog;
      this.button.setAttribute("aria-pressed", String(this.isLog));
      this.draw();
    });
    const heading = element("div", { class: "row-head" }, [element("h3", {}, [isShort(unit) ? title : `${title}, ${unit}`])]);
    // Shares have all their place between nothing and everything.
    if (unit !== "share") {
      heading.append(this.button);
    }
    this.panels = element(
      "div",
      { class: "panels" },
      this.charts.map((chart) => chart.figure),
    );
    this.element = element("section", { class: "row" }, [heading, this.panels]);
  }

  isWide() {
    const series = this.charts.flatMap((chart) => chart.series);
    // Of rates and what comes seldom a peak says little.
    const mean = ({ ys }) => ys.reduce((a, b) => a + b, 0) / ys.length;
    const means = series.map(mean).filter((value) => value > 0);
    return Math.max(...means) > WIDE * Math.min(...means);
  }

  toggle(name) {
    if (!this.hidden.delete(name)) {
      this.hidden.add(name);
    }
    this.draw();
  }

  /** Puts as many charts in each line, as far as it goes. */
  lay() {
    const count = this.charts.length;
    const fit = Math.max(1, Math.floor(this.element.clientWidth / PANEL));
    this.panels.style.setProperty("--columns", Math.ceil(count / Math.ceil(count / fit)));
  }

  /** Draws all charts on one scale, as soon as they are on the screen. */
  draw() {
    this.lay();
    this.isDirty = true;
    if (!this.isSeen) {
      return;
    }
    this.isDirty = false;
    const ends = this.charts.map((chart) => chart.gather(this.isLog));
    let least = Math.min(...ends.map((end) => end[0]));
    let most = Math.max(...ends.map((end) => end[1]));
    if (!(most > 0)) {
      [least, most] = [0.1, 1];
    }
    if (this.isLog) {
      least = Math.max(least, most / 10 ** DECADES);
      least = 10 ** Math.floor(Math.log10(least) + 1e-9);
      most = Math.max(most * 1.1, least * 10);
    } else {
      least = 0;
      most = this.unit === "share" ? 1 : most * 1.05;
    }
    this.charts.forEach((chart) => chart.paint(least, most));
  }

  see(isSeen) {
    this.isSeen = isSeen;
    if (isSeen && this.isDirty) {
      this.draw();
    } else if (isSeen) {
      this.mark();
    }
  }

  mark() {
    this.charts.forEach((chart) => chart.mark());
  }
}

/** What redraws rows when they come into sight, so that a page of many charts stays fluent. */
const sight = new IntersectionObserver(
  (entries) => entries.forEach(({ target, isIntersecting }) => target.row.see(isIntersecting)),
  { rootMargin: "300px" },
);
const widths = new ResizeObserver((entries) => entries.forEach(({ target }) => target.row.draw()));

class Comparison {
  constructor(host, data) {
    this.host = host;
    this.data = data;
    this.runs = data.runs.map((raw) => new Run(raw));
    this.picked = data.parameters.map(({ first }) => first);
    const times = this.runs.map(({ raw }) => raw.times).filter(({ count }) => count > 0);
    const ends = [
      Math.min(...times.map(({ first }) => first)),
      Math.max(...times.map(({ last }) => last)),
    ];
    this.axis = new Axis(
      times.length > 0 ? Math.min(0, ends[0]) : 0,
      times.length > 0 ? ends[1] : 1,
      false,
      "ms",
    );
    this.axis.cursor = this.peak();
    this.axis.listeners.push((what) => this.later(what));
    this.body = element("div");
    this.host.replaceChildren(...this.tools(), this.body);
    this.build();
  }

  /** Runs of the values that were picked. */
  get shown() {
    return this.runs.filter((run) => run.at.every((value, index) => value === this.picked[index]));
  }

  /** Time at which most bytes were below a socket: there is something to see. */
  peak() {
    const [run] = this.shown;
    const below = run
      ? ["qdisc", "device", "in_flight"].flatMap((place) =>
          run.tracks(place).map(({ values }) => values),
        )
      : [];
    let best = 0;
    let most = 0;
    for (let index = 0; index < (below[0]?.length ?? 0); index += 1) {
      const total = below.reduce((sum, values) => sum + values[index], 0);
      [best, most] = total > most ? [index, total] : [best, most];
    }
    return most > 0 ? run.times[best] : this.axis.cursor;
  }

  tools() {
    const selects = this.data.parameters.map(({ name, values }, index) => {
      const options = values.map((value, at) => element("option", { value: at }, [value]));
      const select = element("select", {}, options);
      select.value = this.picked[index];
      select.addEventListener("change", () => {
        this.picked[index] = Number(select.value);
        this.build();
      });
      return element("label", {}, [`${name} `, select]);
    });
    this.slider = element("input", {
      type: "range",
      min: 0,
      max: 1000,
      "aria-label": "Time of the cursor",
    });
    this.slider.addEventListener("input", () => {
      const [first, last] = this.axis.full;
      this.axis.point(first + ((last - first) * this.slider.value) / 1000);
    });
    this.clock = element("output");
    const button = (name, label, action) => {
      const made = element("button", { type: "button", "aria-label": label }, [name]);
      made.addEventListener("click", action);
      return made;
    };
    const buttons = [
      button("+", "Zoom in at the cursor", () => this.axis.zoom(0.5)),
      button("−", "Zoom out", () => this.axis.zoom(2)),
      button("all", "Show all of the time", () => this.axis.reset()),
    ];
    const time = element("label", { class: "time" }, ["time ", this.slider, this.clock]);
    const tools = element("div", { class: "tools", role: "group" }, [time, ...buttons]);
    return selects.length > 0 ? [element("div", { class: "picks" }, selects), tools] : [tools];
  }

  /** Makes the picture and the charts of the runs that are shown. */
  build() {
    (this.rows ?? []).forEach((row) => {
      sight.unobserve(row.element);
      widths.unobserve(row.element);
    });
    const runs = this.shown;
    this.colours = this.colourRuns(runs);
    this.pictures = this.data.flows.map((subject) => new FlowPicture(subject, runs, this.axis));
    this.rows = this.data.rows.map((row) => this.row(row, runs)).filter((row) => row !== undefined);
    const shares = this.shares(runs);
    this.rows.push(...shares);
    const layers = this.rows.filter(({ kind }) => kind === "layers").length;
    const open = OPEN + Math.min(layers, LAYERED);
    const [first, rest] = [this.rows.slice(0, open), this.rows.slice(open)];
    const more = element("details", { class: "more" }, [
      element("summary", {}, [`${rest.length} more quantities`]),
      ...rest.map((row) => row.element),
    ]);
    more.open = this.isOpen ?? false;
    more.addEventListener("toggle", () => {
      this.isOpen = more.open;
    });
    const flows = element(
      "div",
      { class: "flows" },
      this.pictures.map((picture) => picture.table),
    );
    const charts = element(
      "div",
      { class: "charts" },
      first.map((row) => row.element),
    );
    if (rest.length > 0) {
      charts.append(more);
    }
    charts.append(this.explanations(runs));
    this.body.className = "body";
    this.body.style.setProperty("--runs", Math.max(1, runs.length));
    this.body.replaceChildren(flows, charts);
    this.rows.forEach((row) => {
      row.element.row = row;
      sight.observe(row.element);
      widths.observe(row.element);
    });
    this.mark();
  }

  /** Colours of roles where runs have them; each colour stands for one run. */
  colourRuns(runs) {
    const free = runs.some(({ role }) => role) ? OTHERS : PALETTE;
    const colours = new Map();
    let next = 0;
    for (const run of runs) {
      const own = `--${run.role}`;
      const isFree = run.role && ![...colours.values()].includes(own);
      colours.set(run, isFree ? own : free[next % free.length]);
      next += isFree ? 0 : 1;
    }
    return colours;
  }

  row(row, runs) {
    const isLayers = row.kind === "layers";
    const tracks = (run) => {
      if (!isLayers) {
        return row.quantities
          .flatMap((quantity) => run.tracks(quantity))
          .filter(({ subject }) => row.subjects.includes(subject));
      }
      const of = (quantity, index) => ({
        subject: row.names[index],
        quantity,
        values: run.values(quantity, row.subjects[0]),
      });
      return row.quantities.map(of).filter(({ values }) => values !== undefined);
    };
    const isSingle = row.subjects.length === 1;
    const colour = (run, { subject, quantity }) => {
      if (isLayers) {
        return LAYERS[quantity] ?? GATES[quantity.slice(GATE.length)] ?? "--c7";
      }
      return isSingle
        ? this.colours.get(run)
        : PALETTE[row.subjects.indexOf(subject) % PALETTE.length];
    };
    const panels = runs.map((run) => {
      const line = (track) => ({
        name: track.subject,
        colour: colour(run, track),
        xs: run.times,
        ys: track.values,
      });
      return { title: run.name, series: tracks(run).map(line) };
    });
    return panels.some(({ series }) => series.length > 0)
      ? new Row(row, panels, this.axis)
      : undefined;
  }

  /** Distributions: a chart for each subject, with a line for each run. */
  shares(runs) {
    const subjects = [...new Set(runs.flatMap((run) => run.shares.map(({ subject }) => subject)))];
    const made = subjects.map((subject) => {
      const series = runs.flatMap((run) => {
        const own = run.shares.find((one) => one.subject === subject);
        const line = { name: run.name || subject, colour: this.colours.get(run) };
        return own
          ? [{ ...line, xs: Float64Array.from(own.ms), ys: Float64Array.from(own.shares) }]
          : [];
      });
      return { title: subject, series };
    });
    const all = made
      .flatMap(({ series }) => series.flatMap(({ xs }) => [...xs]))
      .filter((ms) => ms > 0);
    if (all.length === 0) {
      return [];
    }
    const most = all.reduce((a, b) => Math.max(a, b));
    const least = Math.max(
      all.reduce((a, b) => Math.min(a, b)),
      most / 10 ** DECADES,
    );
    const axis = new Axis(
      10 ** Math.floor(Math.log10(least)),
      Math.max(most * 1.1, least * 10),
      true,
      "ms",
    );
    const row = new Row(
      { title: "Share of all that took at most so long", unit: "share", kind: "lines" },
      made,
      axis,
    );
    axis.listeners.push((what) => (what === "range" ? row.draw() : row.mark()));
    return [row];
  }

  /** Why flows had their rates, in words. A pause can be looked at. */
  explanations(runs) {
    const pause = ({ from, length, cause, connection }, { raw }) => {
      const button = element("button", { type: "button" }, [`at ${spoken(from, "ms")}`]);
      button.addEventListener("click", () => {
        this.axis.show(from - length, from + 2 * length);
        this.axis.point(Math.min(raw.times.last, from + length / 2));
      });
      const which = connection > 0 ? `, connection ${connection + 1}` : "";
      return element("li", {}, [button, ` ${spoken(length, "ms")}${which}: ${cause}`]);
    };
    const one = (run, { app, sentences, pauses }) => {
      const swatch = element("i", { "aria-hidden": "true" });
      swatch.style.background = `var(${this.colours.get(run)})`;
      const parts = [
        element("h4", {}, [swatch, [run.name, app].filter((name) => name).join(": ")]),
      ];
      parts.push(element("p", {}, [sentences.join(" ")]));
      if (pauses.length > 0) {
        parts.push(
          element("p", {}, ["Longest pauses:"]),
          element(
            "ul",
            {},
            pauses.map((own) => pause(own, run)),
          ),
        );
      }
      return element("div", { class: "why" }, parts);
    };
    const all = runs.flatMap((run) => run.explained.map((own) => one(run, own)));
    const grid = element("div", { class: "whys" }, all);
    const folded = element("details", {}, [
      element("summary", {}, ["Why the flows had their rates"]),
      grid,
    ]);
    folded.open = all.length <= SAID;
    return all.length > 0 ? folded : "";
  }

  /** Draws at the next frame, once for all that happened until then. */
  later(what) {
    this.isRange ||= what === "range";
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      const isRange = this.isRange;
      this.isRange = false;
      this.rows
        .filter((row) => row.axis === this.axis)
        .forEach((row) => {
          if (isRange) {
            row.draw();
          } else if (row.isSeen) {
            row.mark();
          }
        });
      this.mark();
    });
  }

  /** Shows the cursor in the tools and in the pictures. */
  mark() {
    const [first, last] = this.axis.full;
    const text = spoken(this.axis.cursor, "ms");
    this.slider.value = Math.round((1000 * (this.axis.cursor - first)) / (last - first || 1));
    this.slider.setAttribute("aria-valuetext", text);
    this.clock.textContent = text;
    this.pictures.forEach((picture) => picture.mark());
  }

  /** Draws what is not on the screen too. */
  drawAll() {
    this.rows.forEach((row) => row.see(true));
  }
}

const comparisons = [...document.querySelectorAll(".comparison")].map((host) => {
  const data = JSON.parse(host.querySelector("script").textContent);
  return new Comparison(host, data);
});

// On paper nothing can be opened. Further charts are there if they were open.
window.addEventListener("beforeprint", () => {
  document.querySelectorAll("details:not(.more)").forEach((one) => {
    one.dataset.was = one.open ? "open" : "";
    one.open = true;
  });
  comparisons.forEach((one) => one.drawAll());
});
window.addEventListener("afterprint", () => {
  document.querySelectorAll("details:not(.more)").forEach((one) => {
    one.open = one.dataset.was === "open";
  });
});
