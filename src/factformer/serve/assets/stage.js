// The pictures: surrogate, solver, difference and input of one plane, with their colours.
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const LARGE = 450; // pixels of the picture that is drawn large
const byId = (name) => document.getElementById(name);

class Stage {
  constructor(maps) {
    this.maps = Object.fromEntries(Object.entries(maps).map(([name, text]) => [name, fromBase64(text)]));
    this.node = byId("stage");
    dark.addEventListener("change", () => this.draw());
    new ResizeObserver(() => { if (this.isLine) this.draw(); }).observe(this.node);
  }

  // A new flow, or another of its fields or planes.
  choose(description, component, plane) {
    Object.assign(this, { description, field: description.fields[component], plane: description.planes[plane], shown: null, widest: 0 });
    this.isLine = this.plane.axes.length === 1;
    const { aspect } = this.plane, { steady } = description;
    this.node.classList.toggle("still", steady);
    this.node.classList.toggle("alone", !description.can_compare && !steady);
    this.node.classList.toggle("wide", !steady && (this.isLine || aspect < 0.62));
    byId("screen-input").hidden = !description.input;
    if (description.input) byId("name-input").textContent = description.input.label;
    for (const canvas of this.node.querySelectorAll(".frame canvas")) {
      canvas.style.aspectRatio = this.isLine ? "5 / 2" : String(1 / aspect);
      canvas.parentElement.style.width = this.isLine ? "100%" : `${Math.min(100, 125 / aspect)}%`;
    }
  }

  show(picture) { this.shown = picture; this.draw(); }

  get kinds() {
    const { planes } = this.shown;
    return [...Object.keys(planes), ...(planes.truth ? ["difference"] : [])];
  }

  values(kind) {
    const { planes } = this.shown;
    if (kind !== "difference") return planes[kind];
    return planes.prediction.map((value, i) => value - planes.truth[i]);
  }

  map(kind) {
    const shade = dark.matches ? "_dark" : "";
    if (kind === "difference") return this.maps[`difference${shade}`];
    return (kind === "input" ? this.description.input : this.field).signed ? this.maps[`diverging${shade}`] : this.maps.sequential;
  }

  limits(kind) {
    if (kind === "input") return this.description.input.limits;
    return kind === "difference" ? [-this.widest, this.widest] : this.field.limits;
  }

  draw() {
    if (!this.shown) return;
    const compared = Boolean(this.shown.planes.truth);
    if (!compared) this.widest = 0;
    for (const name of ["screen-truth", "screen-difference", "side-bar"]) byId(name).hidden = !compared;
    if (byId("invite")) byId("invite").hidden = compared;
    if (compared) this.widest = Math.max(this.widest, roundUp(largest(this.values("difference"))));
    for (const kind of this.kinds) {
      if (this.isLine) this.drawLine(kind);
      else paintValues(byId(`canvas-${kind}`), this.picture(kind), this.map(kind), this.limits(kind));
    }
    this.drawBars(compared);
    for (const kind of this.kinds) byId(`canvas-${kind}`).setAttribute("aria-label", this.label(kind));
  }

  label(kind) {
    const names = { prediction: "Surrogate", truth: "Solver", difference: "Surrogate minus solver", input: "Input" };
    return `${names[kind]}: ${kind === "input" ? this.description.input.label : this.field.label}, ${this.plane.label}`;
  }

  // Points outside the domain are NaN: their place is drawn sharp and grey, the values beside them stay as they are.
  picture(kind) {
    const values = this.values(kind), holes = values.some(Number.isNaN);
    const picture = enlarge(holes ? values.map((value) => (Number.isNaN(value) ? 0 : value)) : values, this.plane, kind !== "input", kind === "prediction" ? LARGE : undefined);
    if (!holes) return picture;
    const inside = enlarge(values.map((value) => (Number.isNaN(value) ? 0 : 1)), this.plane, false);
    const across = inside.width / picture.width, along = inside.height / picture.height;
    const seen = Float32Array.from(picture.values, (value, i) => {
      const column = Math.floor((i % picture.width + 0.5) * across), row = Math.floor((Math.floor(i / picture.width) + 0.5) * along);
      return inside.values[row * inside.width + column] ? value : NaN;
    });
    return { values: seen, width: picture.width, height: picture.height };
  }

  // One axis: the value as a line; the solver's as a broad pale one behind the surrogate's.
  drawLine(kind) {
    const canvas = byId(`canvas-${kind}`), style = getComputedStyle(document.documentElement), scale = window.devicePixelRatio || 1;
    canvas.width = Math.max(80, canvas.clientWidth) * scale; canvas.height = canvas.width * 0.4;
    const context = canvas.getContext("2d"), [low, high] = this.limits(kind), margin = 0.35 * (high - low);
    const down = (value) => canvas.height * (1 - (value - low + margin) / (high - low + 2 * margin));
    const stroke = (name, color, thickness, alpha = 1) => {
      const values = this.values(name);
      context.beginPath();
      values.forEach((value, i) => context.lineTo(canvas.width * shareOf(this.plane, 0, i), down(value)));
      context.globalAlpha = alpha; context.lineJoin = "round";
      context.strokeStyle = style.getPropertyValue(color); context.lineWidth = thickness * scale; context.stroke();
      context.globalAlpha = 1;
    };
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, down(Math.min(Math.max(0, low), high)), canvas.width, scale);
    if (kind === "prediction" && this.shown.planes.truth) stroke("truth", "--ink", 5, 0.25);
    stroke(kind, { input: "--ink", truth: "--ink", prediction: "--series-0", difference: "--series-3" }[kind], 2);
  }

  drawBars(compared) {
    const bars = [["prediction", "field", this.field.label], ...(compared ? [["difference", "difference", "surrogate − solver"]] : [])];
    for (const [kind, name, label] of bars) {
      const ends = this.limits(kind).map((value) => formatNumber(value)), ticks = byId(`ticks-${name}`), bar = byId(`bar-${name}`);
      bar.hidden = ticks.hidden = this.isLine;
      byId(`name-${name}`).textContent = this.isLine ? `${label} ↑ ${ends.join(" … ")}` : label;
      paintBar(bar, this.map(kind));
      ticks.replaceChildren(...ends.map((end) => element("span", {}, end)));
    }
  }

  // Values under a place of the plane, given as shares of its sides.
  reading([right, up]) {
    const { plane } = this, indices = [right, up].slice(0, plane.axes.length).map((share, a) => indexAt(plane, a, share));
    const point = indices[0] + plane.width * (indices[1] ?? 0);
    const place = indices.map((index, a) => `${plane.axes[a]} = ${formatNumber(plane.points[a][index])}`).join(", ");
    const names = { prediction: "surrogate", truth: "solver", difference: "difference", input: "input" };
    return [place, ...this.kinds.map((kind) => `${names[kind]} ${formatNumber(this.values(kind)[point])}`)].join(" · ");
  }
}

// The size of nearly all values: a few extreme ones may saturate.
function largest(values) {
  const sizes = Float32Array.from(values, (value) => (Number.isNaN(value) ? 0 : Math.abs(value))).sort();
  return sizes[Math.floor(0.995 * (sizes.length - 1))];
}

// The next of 1, 2, 5, 10, …: the colours of a growing difference change now and then, not with every frame.
function roundUp(value) {
  if (!(value > 0)) return 1e-6;
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= value * 0.9999);
}
