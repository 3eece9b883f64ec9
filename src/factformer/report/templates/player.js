// The roll-out player, frame by frame: truth, prediction and difference of one model, or all models beside the truth.
const KINDS = ["truth", "prediction", "difference"];
const darkPage = window.matchMedia("(prefers-color-scheme: dark)");

class Player {
  constructor(data, maps, timing) {
    Object.assign(this, { data, timing, store: new ClipStore(data), frame: 0, timer: null, clip: null, listeners: [] });
    this.maps = Object.fromEntries(Object.entries(maps).map(([name, text]) => [name, fromBase64(text)]));
    this.canvases = Object.fromEntries(KINDS.map((kind) => [kind, document.getElementById(`canvas-${kind}`)]));
    this.seekBar = document.getElementById("seek");
    this.playButton = document.getElementById("play");
    this.choosers = Object.fromEntries(["view", "run", "sample", "field", "plane"].map((name) => [name, document.getElementById(`choose-${name}`)]));
    for (const chooser of Object.values(this.choosers)) chooser.addEventListener("change", () => this.select());
    this.seekBar.addEventListener("input", () => { this.pause(); this.show(Number(this.seekBar.value)); });
    this.playButton.addEventListener("click", () => this.toggle());
    this.ofModels = data.runs.map((name, run) => modelScreen(name, run));
    document.getElementById("screen-difference").after(...this.ofModels.map((screen) => screen.figure));
    for (const canvas of [...Object.values(this.canvases), ...this.ofModels.map((screen) => screen.canvas)]) {
      const frame = canvas.parentElement;
      frame.addEventListener("pointermove", (event) => this.point(event, frame));
      frame.addEventListener("pointerdown", (event) => this.point(event, frame));
      frame.addEventListener("pointerleave", () => this.unpoint());
    }
    document.addEventListener("keydown", (event) => this.key(event));
    darkPage.addEventListener("change", () => { this.drawBars(); this.draw(); });
    new ResizeObserver(() => { if (this.isLine()) this.draw(); }).observe(this.canvases.truth.parentElement);
  }

  get selection() {
    return Object.fromEntries(Object.entries(this.choosers).map(([name, chooser]) => [name, Number(chooser.value)]));
  }

  // What all models show beside the truth; null where one model is shown alone.
  get compared() { return [null, "prediction", "difference"][this.selection.view]; }

  isLine() { return this.data.planes[0].axes.length === 1; }

  async select() {
    const wanted = this.selection, ticket = this.ticket = {}, kind = this.compared;
    const runs = kind ? this.ofModels.map((screen) => screen.run) : [wanted.run];
    const [input, ...clips] = await Promise.all([this.store.input(wanted), ...runs.map((run) => this.store.clip({ ...wanted, run }))]);
    if (ticket !== this.ticket) return; // a later choice has overtaken this one
    const [clip] = clips, truth = { kind: "truth", canvas: this.canvases.truth, clip };
    this.screens = kind
      ? [truth, ...this.ofModels.map(({ canvas, run }, i) => ({ kind, canvas, run, clip: clips[i] }))]
      : KINDS.map((each) => ({ kind: each, canvas: this.canvases[each], clip }));
    if (input) this.screens.push({ kind: "input", canvas: document.getElementById("canvas-input"), clip });
    Object.assign(this, { clip, input });
    this.showScreens(kind);
    this.shapeFrames();
    this.drawBars();
    this.show(this.frame);
  }

  showScreens(kind) {
    document.querySelector(".screens").classList.toggle("compared", kind !== null);
    for (const name of ["prediction", "difference"]) document.getElementById(`screen-${name}`).hidden = kind !== null;
    for (const { figure } of this.ofModels) figure.hidden = kind === null;
    document.querySelector(".bar-difference").hidden = kind === "prediction";
    this.choosers.run.parentElement.hidden = kind !== null || this.data.runs.length < 2;
  }

  // Pictures have the shape of the box, whatever its number of points, unless it is very long; tall ones are narrower
  // than their column.
  shapeFrames() {
    if (this.isLine()) return;
    const { aspect } = this.clip.plane;
    for (const canvas of document.querySelectorAll(".frame canvas")) {
      canvas.style.aspectRatio = String(1 / aspect);
      canvas.parentElement.style.width = `${Math.min(100, 160 / aspect)}%`;
    }
  }

  show(frame) {
    this.frame = Math.min(Math.max(frame, 0), this.data.frames - 1);
    this.seekBar.value = this.frame;
    this.draw();
    for (const listener of this.listeners) listener(this.frame);
  }

  toggle() { if (this.timer === null) this.play(); else this.pause(); }

  play() {
    if (this.frame === this.data.frames - 1) this.show(0);
    this.timer = setInterval(() => this.show((this.frame + 1) % this.data.frames), 1000 * Math.min(0.25, Math.max(0.09, 4 / this.data.frames)));
    this.showPlaying(true);
  }

  pause() {
    clearInterval(this.timer);
    this.timer = null;
    this.showPlaying(false);
  }

  showPlaying(playing) {
    this.playButton.classList.toggle("playing", playing);
    this.playButton.setAttribute("aria-label", playing ? "Pause" : "Play");
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || this.data.frames < 2) return;
    if (event.target.closest("select, input, button, summary, textarea, a, .chart, .scroll")) return;
    const moves = { ArrowLeft: this.frame - 1, ArrowRight: this.frame + 1, Home: 0, End: this.data.frames - 1 };
    if (event.key === " ") this.toggle();
    else if (event.key in moves) { this.pause(); this.show(moves[event.key]); }
    else return;
    event.preventDefault();
  }

  map(kind) {
    const shade = darkPage.matches ? "_dark" : "";
    if (kind === "difference") return this.maps[`difference${shade}`];
    return (kind === "input" ? this.data.input : this.clip.field).signed ? this.maps[`diverging${shade}`] : this.maps.sequential;
  }

  limits(kind) {
    if (kind === "input") return this.data.input.limits;
    return kind === "difference" ? this.clip.field.difference_limits : this.clip.field.limits;
  }

  draw() {
    if (!this.clip) return;
    const { plane } = this.clip;
    for (const screen of this.screens) {
      const { kind, canvas, clip } = screen;
      if (this.isLine()) this.drawLine(screen);
      else {
        const picture = kind === "input" ? enlarge(this.input, plane, false) : enlarge(clip.frame(kind, this.frame), plane);
        paintValues(canvas, picture, this.map(kind), this.limits(kind));
      }
    }
    this.drawClock();
    this.drawPoint();
  }

  // One axis: the value as a line, the truth as a pale one behind the prediction.
  drawLine({ kind, canvas, clip }) {
    const style = getComputedStyle(document.documentElement);
    const scale = window.devicePixelRatio || 1, width = Math.max(80, canvas.parentElement.clientWidth);
    canvas.width = width * scale; canvas.height = 0.75 * width * scale;
    const context = canvas.getContext("2d"), [low, high] = this.limits(kind), margin = 0.08 * (high - low);
    const down = (value) => canvas.height * (1 - (value - low + margin) / (high - low + 2 * margin));
    const valueAt = (name, i) => (name === "input" ? this.input[i] : clip.valueAt(name, this.frame, i));
    const stroke = (name, color, thickness) => {
      context.beginPath();
      for (let i = 0; i < clip.plane.width; i++) {
        context.lineTo(canvas.width * shareOf(clip.plane, 0, i), down(valueAt(name, i)));
      }
      context.strokeStyle = style.getPropertyValue(color); context.lineWidth = thickness * scale; context.stroke();
    };
    context.fillStyle = style.getPropertyValue("--line");
    context.fillRect(0, down(Math.min(Math.max(0, low), high)), canvas.width, scale);
    if (kind === "prediction") stroke("truth", "--line", 3);
    stroke(kind, { input: "--ink", truth: "--ink", prediction: "--series-0", difference: "--series-3" }[kind], 1.8);
  }

  drawBars() {
    if (!this.clip) return;
    for (const [kind, name, label] of [["truth", "field", this.clip.field.label], ["difference", "difference", "prediction − truth"]]) {
      const bar = document.getElementById(`bar-${name}`), colors = this.map(kind), [low, high] = this.limits(kind);
      const ends = [low, high].map((value) => formatNumber(value)), ticks = document.getElementById(`ticks-${name}`);
      bar.hidden = ticks.hidden = this.isLine();
      document.getElementById(`name-${name}`).textContent = this.isLine() ? `${label} ↑ ${ends.join(" … ")}` : label;
      paintBar(bar, colors);
      ticks.replaceChildren(...ends.map((end) => element("span", {}, end)));
    }
  }

  drawClock() {
    const { field } = this.clip, { run, sample } = this.selection, clock = document.getElementById("clock");
    const count = `frame ${this.frame + 1} of ${this.data.frames}`;
    const time = this.timing.dt ? `t = ${formatNumber((this.frame + 1) * this.timing.dt, 4)}` : `frame ${this.frame + 1}`;
    clock.replaceChildren(time, " ", element("small", {}, this.timing.dt ? `· ${count}` : `of ${this.data.frames}`));
    this.seekBar.setAttribute("aria-valuetext", `${time}, ${count}`);
    const errorOf = (one) => formatError(this.data.errors[one][sample][field.group][this.frame]);
    const where = `Relative error of ${field.group} in this ${this.data.frames > 1 ? "frame" : "sample"}`;
    document.getElementById("readout-error").replaceChildren(
      ...(this.compared ? [`${where}: above each model`] : [`${where}: `, element("b", {}, errorOf(run))]));
    for (const { figure, run: one } of this.ofModels) figure.querySelector("small").textContent = errorOf(one);
    for (const { kind, canvas, run: one } of this.screens) {
      if (kind === "input") continue;
      const whose = one === undefined ? "" : ` by ${this.data.runs[one]}`;
      canvas.setAttribute("aria-label", `${kind} of ${field.label}${whose}, ${this.clip.plane.label}, sample ${sample + 1}, ${count}`);
    }
  }

  point(event, frame) {
    const box = frame.getBoundingClientRect();
    const inside = (value) => Math.min(0.9999, Math.max(0, value));
    this.spot = [inside((event.clientX - box.left) / box.width), inside((event.clientY - box.top) / box.height)];
    this.drawPoint();
  }

  unpoint() { this.spot = null; this.drawPoint(); }

  drawPoint() {
    const readout = document.getElementById("readout-point");
    const spots = document.querySelectorAll(".spot");
    if (!this.spot || !this.clip) {
      spots.forEach((spot) => { spot.hidden = true; });
      readout.textContent = this.caption();
      return;
    }
    const { plane } = this.clip, [right, down] = this.spot;
    spots.forEach((spot) => {
      spot.hidden = false; spot.style.left = `${100 * right}%`; spot.style.top = `${100 * down}%`;
    });
    const indices = [right, 1 - down].slice(0, plane.axes.length).map((share, a) => indexAt(plane, a, share));
    const point = indices[0] + plane.width * (indices[1] ?? 0);
    const place = indices.map((index, a) => `${plane.axes[a]} = ${formatNumber(plane.points[a][index])}`);
    const values = this.screens.filter(({ kind }) => kind !== "input").map(({ kind, clip, run }) =>
      `${run === undefined ? kind : this.data.runs[run]} ${formatNumber(clip.valueAt(kind, this.frame, point))}`);
    readout.textContent = [place.join(", "), ...values].join(" · ");
  }

  caption() {
    if (!this.clip) return "";
    const arrows = ["→", "↑"];
    const { plane } = this.clip;
    const axes = plane.axes.map((name, a) =>
      `${name} ${arrows[a]} ${plane.extent[a].map((value) => formatNumber(value)).join(" … ")}`).join(", ");
    return plane.to_scale ? axes : `${axes} · not to scale`;
  }
}

// The picture of one model among all, with its error in the frame above it.
function modelScreen(name, run) {
  const canvas = element("canvas", { id: `canvas-model-${run}`, role: "img", "aria-label": name }), spot = element("i", { class: "spot", hidden: "" });
  const figure = element("figure", { class: "screen", hidden: "" },
    element("figcaption", {}, name, " ", element("small", {})), element("div", { class: "frame" }, canvas, spot));
  return { figure, canvas, run };
}
