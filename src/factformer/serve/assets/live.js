// The page: what people do becomes requests, pictures become drawings and curves.
const MOST_POINTS = 1500, AIM_STEP = 0.02;

class Live {
  constructor(data) {
    Object.assign(this, { data, talk: new Talk(), stage: new Stage(data.maps), seed: 0, playing: true, aim: [0.5, 0.5], strokes: [], pending: {}, trail: null, running: false, rates: [] });
    this.charts = {
      spectrum: new LineChart(byId("spectrum"), { series: [], xLabel: "wavenumber", yLabel: "energy", log: true, format: (value) => formatNumber(value), describe: (x) => `wavenumber ${x}` }),
      error: new LineChart(byId("error"), { series: [], xLabel: "time since the solver started", yLabel: "relative L² error", fromZero: true, format: formatError, describe: (x) => `t = ${formatNumber(x, 4)}` }),
    };
    for (const chart of Object.values(this.charts)) { const draw = chart.draw; chart.draw = function () { if (this.options.series.length) draw.call(this); }; }
    this.wire();
  }

  async open(file = null) {
    try {
      this.description = await this.talk.open(this.seed, file);
    } catch (refused) {
      if (!(refused instanceof Refused)) throw refused;
      this.notice(refused.message);
      return;
    }
    this.notice("");
    byId("empty").hidden = true;
    byId("live").hidden = byId("charts").hidden = false;
    this.fill("field", this.description.fields.map((field) => field.label));
    this.fill("plane", this.description.planes.map((plane) => plane.label));
    this.sliders();
    const { steady: still } = this.description;
    for (const name of ["play", "step", "label-speed"]) byId(name).hidden = still;
    byId("panel-error").hidden = still || !this.description.can_compare;
    byId("new").disabled = !this.data.has_start;
    byId("save").href = this.talk.stateAddress;
    if (still) this.pause();
    this.choose();
    this.poke();
  }

  fill(name, labels) {
    byId(`choose-${name}`).replaceChildren(...labels.map((label, i) => element("option", { value: i }, label)));
    byId(`label-${name}`).hidden = labels.length < 2;
  }

  sliders() {
    byId("parameters").replaceChildren(...this.description.parameters.map(({ name, value, low, high, log, whole }) => {
      const [to, from] = log ? [Math.log, Math.exp] : [(x) => x, (x) => x];
      const output = element("output", {}, formatNumber(value));
      const slider = element("input", { type: "range", min: to(low), max: to(high), step: whole ? 1 : "any", value: to(value), "data-parameter": name });
      slider.addEventListener("input", () => {
        const chosen = from(Number(slider.value));
        output.textContent = formatNumber(chosen);
        this.pending.parameters = { ...this.pending.parameters, [name]: chosen };
        this.poke();
      });
      return element("label", {}, name.replaceAll("_", " "), output, slider);
    }));
  }

  choose() {
    this.component = Number(byId("choose-field").value); this.plane = Number(byId("choose-plane").value);
    this.stage.choose(this.description, this.component, this.plane);
    this.errors = { x: [], y: [] };
  }

  // Requests go out one after the other. While playing, each asks for the next frame; otherwise only for what was done.
  poke() { if (!this.running) this.run(); }

  async run() {
    this.running = true;
    while (this.wants()) {
      const began = performance.now(), doings = this.doings();
      try {
        this.show(await this.talk.perform(doings), doings);
        if (doings.steps) await pause(1000 / Number(byId("speed").value) - (performance.now() - began));
        if (doings.steps) this.measure(began);
      } catch (refused) {
        if (!(refused instanceof Refused)) throw refused;
        if (refused.isBusy) { await pause(1000); continue; }
        this.pause();
        this.notice(refused.isGone ? "This flow was put away after a long rest. Choose New flow to go on." : refused.message);
        break;
      }
    }
    this.running = false;
  }

  wants() {
    if (!this.talk.key) return false;
    return (this.playing && !document.hidden) || this.strokes.length > 0 || Object.keys(this.pending).length > 0 || !this.stage.shown;
  }

  doings() {
    const doings = { component: this.component, plane: this.plane, stirs: this.strokes.splice(0, 16), ...this.pending };
    if (this.playing && !doings.steps) doings.steps = 1;
    this.pending = {};
    return doings;
  }

  show(picture, doings) {
    if (doings.component !== this.component || doings.plane !== this.plane) return; // another choice was made meanwhile
    if (doings.restart || doings.compare) { this.errors = { x: [], y: [] }; this.stage.widest = 0; }
    this.picture = picture;
    this.stage.show(picture);
    if (picture.ended && this.playing) { this.pause(); this.notice("The known forcing ends here. Restart to see it again."); }
    const comparing = picture.since !== null, { frame_dt: dt, steady } = this.description;
    if (byId("compare")) { byId("compare").setAttribute("aria-pressed", String(comparing)); byId("compare").textContent = comparing ? "Stop comparing" : "Compare"; }
    byId("clock").replaceChildren(...(steady ? [] : [`t = ${formatNumber(picture.number * dt, 4)}`, " ", element("small", {}, `· frame ${picture.number}`)]));
    this.drawError(picture, comparing, dt);
    this.drawSpectrum(picture.spectra);
    this.read();
  }

  drawError(picture, comparing, dt) {
    const error = picture.errors[this.stage.field.group];
    byId("error-now").textContent = comparing ? `relative error ${formatError(error)}` : "";
    byId("error-now").dataset.error = comparing ? error : "";
    byId("error-now").dataset.since = comparing ? picture.since : "";
    byId("error").hidden = !comparing; byId("error-hint").hidden = comparing;
    if (!comparing) { this.errors = { x: [], y: [] }; return; }
    const { x, y } = this.errors, time = picture.since * dt;
    if (x.length && x[x.length - 1] >= time) { x.pop(); y.pop(); }
    x.push(time); y.push(error);
    if (x.length > MOST_POINTS) { x.shift(); y.shift(); }
    this.charts.error.options.series = [{ name: this.stage.field.group, color: "var(--series-3)", dash: "", x, y }];
    this.charts.error.draw();
  }

  drawSpectrum(spectra) {
    byId("panel-spectrum").hidden = !spectra.prediction;
    if (!spectra.prediction) return;
    const line = (name, values, look) => ({ name, dash: "", x: values.slice(1).map((_, i) => i + 1), y: values.slice(1), ...look });
    const series = [line("surrogate", spectra.prediction, { color: "var(--series-0)" })];
    if (spectra.truth) series.unshift(line("solver", spectra.truth, { color: "var(--ink)", wide: true }));
    this.charts.spectrum.options.series = series;
    this.charts.spectrum.draw();
  }

  measure(began) {
    this.rates = [...this.rates.slice(-9), performance.now() - began];
    const rate = 1000 * this.rates.length / this.rates.reduce((sum, one) => sum + one, 0);
    byId("rate").textContent = `${formatNumber(rate, 2)} frames/s, ${formatNumber(this.picture.milliseconds, 2)} ms each`;
  }

  play() { this.playing = true; this.showPlaying(); this.rates = []; this.poke(); }
  pause() { this.playing = false; this.showPlaying(); }
  toggle() { if (this.playing) this.pause(); else this.play(); }
  showPlaying() {
    byId("play").classList.toggle("playing", this.playing);
    byId("play").setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }
  step() { this.pause(); this.ask({ steps: 1 }); }
  restart() { this.notice(""); this.ask({ restart: true }); }
  compare() { if (byId("compare")) this.ask({ compare: this.picture?.since == null }); }
  async fresh() { this.seed += 1; await this.open(); }
  ask(doings) { Object.assign(this.pending, doings); this.poke(); }

  // Strokes: where the pointer went, its direction, and the less the shorter the way.
  stir(at, along, turned) {
    const radius = Number(byId("radius").value), strength = (turned ? -1 : 1) * Number(byId("strength").value);
    const { extent, axes } = this.stage.plane, sides = extent.map(([low, high]) => high - low);
    const way = along.slice(0, axes.length).map((part, a) => part * sides[a]), length = Math.hypot(...way) / Math.min(...sides);
    const share = along.length ? Math.min(1, length / (1.5 * radius)) : 1;
    this.strokes.push({ at: at.slice(0, axes.length), along: axes.length === 2 ? way : [], radius, strength: strength * share });
    this.poke();
  }

  place(event, frame) {
    const box = frame.getBoundingClientRect(), inside = (value) => Math.min(1, Math.max(0, value));
    return [inside((event.clientX - box.left) / box.width), inside(1 - (event.clientY - box.top) / box.height)];
  }

  press(event, frame) {
    if (event.button > 0) return;
    frame.setPointerCapture(event.pointerId);
    this.trail = { at: this.place(event, frame), stirred: false };
    this.point(event, frame);
  }

  drag(event, frame) {
    this.point(event, frame);
    if (!this.trail) return;
    const at = this.place(event, frame), along = at.map((share, a) => share - this.trail.at[a]);
    if (Math.hypot(...along) < 0.3 * Number(byId("radius").value)) return;
    this.stir(at.map((share, a) => share - 0.5 * along[a]), along, event.shiftKey);
    this.trail = { at, stirred: true };
  }

  release(event) {
    if (this.trail && !this.trail.stirred) this.stir(this.trail.at, [], event.shiftKey);
    this.trail = null;
  }

  point(event, frame) { this.aim = this.place(event, frame); this.aiming = true; this.drawAim(); }

  drawAim() {
    const brush = byId("brush"), frame = byId("frame-prediction"), [right, up] = this.aim;
    brush.hidden = !this.aiming;
    for (const spot of document.querySelectorAll(".stage .spot")) {
      spot.hidden = !this.aiming || spot.parentElement === frame;
      spot.style.left = `${100 * right}%`; spot.style.top = `${100 * (1 - up)}%`;
    }
    const size = 4 * Number(byId("radius").value) * Math.min(frame.clientWidth, frame.clientHeight);
    Object.assign(brush.style, { left: `${100 * right}%`, top: `${100 * (1 - up)}%`, width: `${size}px`, height: `${size}px` });
    this.read();
  }

  read() {
    if (this.picture && this.stage.shown) byId("readout-point").textContent = this.aiming ? this.stage.reading(this.aim.map((share) => Math.min(0.9999, share))) : this.stage.plane.label;
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || !this.picture) return;
    const onPicture = event.target === byId("canvas-prediction"), moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] };
    if (onPicture && event.key in moves) {
      this.aim = this.aim.map((share, a) => Math.min(1, Math.max(0, share + AIM_STEP * moves[event.key][a])));
      this.aiming = true; this.drawAim(); event.preventDefault();
      return;
    }
    if (event.target.closest("select, input, button, summary, textarea, a, .chart")) return;
    const doings = { " ": () => this.toggle(), ArrowRight: () => this.step(), r: () => this.restart(), n: () => this.fresh(), c: () => this.compare(), s: () => this.stir(this.aim, [], event.shiftKey), Enter: () => onPicture && this.stir(this.aim, [], event.shiftKey) };
    const chosen = doings[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!chosen) return;
    event.preventDefault();
    const { steady } = this.description;
    if (steady && [" ", "ArrowRight"].includes(event.key)) return;
    chosen();
  }

  wire() {
    for (const name of ["field", "plane"]) byId(`choose-${name}`).addEventListener("change", () => { this.choose(); this.ask({ steps: 0 }); });
    const buttons = { play: () => this.toggle(), step: () => this.step(), restart: () => this.restart(), new: () => this.fresh(), compare: () => this.compare(), invite: () => this.compare() };
    for (const [name, act] of Object.entries(buttons)) byId(name)?.addEventListener("click", act);
    for (const name of ["file", "first-file"]) byId(name).addEventListener("change", ({ target }) => { if (target.files[0]) this.open(target.files[0]); target.value = ""; });
    for (const name of ["radius", "strength", "speed"]) {
      const show = () => { byId(`${name}-value`).textContent = name === "speed" ? `${byId(name).value} frames/s` : formatNumber(Number(byId(name).value)); };
      byId(name).addEventListener("input", show); show();
    }
    for (const name of ["frame-prediction", "frame-input"]) {
      const frame = byId(name), listen = (kind, act) => frame.addEventListener(kind, (event) => act.call(this, event, frame));
      listen("pointerdown", this.press); listen("pointermove", this.drag); listen("pointerup", this.release);
      listen("pointercancel", () => { this.trail = null; });
      listen("pointerleave", () => { if (!this.trail) { this.aiming = false; this.drawAim(); } });
    }
    document.addEventListener("keydown", (event) => this.key(event));
    document.addEventListener("visibilitychange", () => this.poke());
    window.addEventListener("pagehide", () => this.talk.close());
    window.addEventListener("pageshow", (event) => { if (event.persisted) this.open(); });
    this.showPlaying();
  }

  notice(line) { byId("notice").textContent = line; byId("notice").hidden = !line; }

  begin() {
    if (this.data.has_start) { this.notice("Making a first state …"); this.open(); return; }
    byId("empty-why").textContent = `A random one cannot be made here: ${this.data.why_no_start}. Give the arrays that /predict takes, such as the context frames.`;
    byId("empty").hidden = false;
  }
}

const pause = (milliseconds) => new Promise((resolve) => { setTimeout(resolve, Math.max(0, milliseconds)); });
const live = new Live(JSON.parse(byId("data").textContent));
live.begin();
