// The flow's picture: for each run the bytes of one application at each place on their way, as
// squares, at the time of the cursor.

/** Side of the largest square, in pixels. */
const SIDE = 44;

const STAGES = [
  ["unsent", "write queue", "--unsent"],
  ["gate", "gate", ""],
  ["qdisc", "qdisc", "--qdisc"],
  ["device", "device", "--device"],
  ["in_flight", "wire", "--in-flight"],
];

class FlowPicture {
  constructor(subject, runs, axis) {
    Object.assign(this, { subject, runs, axis });
    const of = (run, stage) => run.values(stage, subject);
    const peak = (values) => (values ? values.reduce((a, b) => Math.max(a, b), 0) : 0);
    // Areas of all runs and times are on one scale.
    const peaks = runs.flatMap((run) => STAGES.map(([stage]) => peak(of(run, stage))));
    this.most = Math.max(1, ...peaks);
    const heads = STAGES.map(([stage, name]) =>
      element("th", { scope: "col", class: stage }, [name]),
    );
    const head = element("tr", {}, [element("td"), ...heads]);
    this.rows = runs.map((run) => this.row(run));
    const caption = element("caption", {}, [
      `The bytes of ${subject} at the cursor; areas are on one scale`,
    ]);
    const body = element(
      "tbody",
      {},
      this.rows.map((row) => row.element),
    );
    this.table = element("table", { class: "flow" }, [caption, element("thead", {}, [head]), body]);
  }

  row(run) {
    const cells = STAGES.map(([stage, , colour]) => {
      const cell = { stage, values: run.values(stage, this.subject), text: element("span") };
      cell.square = element("i", { "aria-hidden": "true" });
      if (stage === "gate") {
        cell.square.className = "bar";
      } else {
        cell.square.style.background = `var(${colour})`;
      }
      const box = element("div", { class: "box" }, [cell.square]);
      cell.element = element("td", { class: stage }, [box, cell.text]);
      return cell;
    });
    const name = element("th", { scope: "row" }, [run.name]);
    return { run, cells, element: element("tr", {}, [name, ...cells.map((cell) => cell.element)]) };
  }

  /** Shows the moment of the cursor. */
  mark() {
    for (const { run, cells } of this.rows) {
      const index = nearest(run.times, this.axis.cursor);
      for (const cell of cells) {
        if (cell.stage === "gate") {
          const { name, share } = run.gate(this.subject, index);
          const isAll = share > 0.995;
          cell.text.textContent = name && (isAll ? name : `${name} ${spoken(share, "share")}`);
          continue;
        }
        const bytes = cell.values?.[index] ?? 0;
        const side = bytes > 0 ? Math.max(1.5, SIDE * Math.sqrt(bytes / this.most)) : 0;
        cell.square.style.width = `${side}px`;
        cell.square.style.height = `${side}px`;
        cell.text.textContent = spoken(bytes, "bytes");
      }
    }
  }
}
