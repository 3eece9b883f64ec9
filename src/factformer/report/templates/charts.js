// Line charts in SVG, redrawn at the width they have, with values under the pointer or the arrow keys.
function niceTicks(low, high, count) {
  const rough = (high - low) / count, power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) || 10);
  const ticks = [];
  for (let tick = Math.ceil(low / step - 1e-9) * step; tick <= high + 1e-9 * step; tick += step) ticks.push(Number(tick.toPrecision(12)));
  return ticks;
}

function decadeTicks(low, high) {
  const first = Math.floor(Math.log10(low)), last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / 7)), factors = last - first <= 3 ? [1, 2, 5] : [1], ticks = [];
  for (let power = first; power <= last; power += every) ticks.push(...factors.map((factor) => factor * 10 ** power));
  return ticks.filter((tick) => tick >= low * 0.999 && tick <= high * 1.001);
}

function tickLabel(value) {
  const power = Math.round(Math.log10(Math.abs(value))), isPower = Math.abs(value / 10 ** power - 1) < 1e-9;
  return isPower && value > 0 && (power >= 4 || power <= -3)
    ? `10${[...String(power)].map((c) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[c] || "⁻").join("")}`
    : formatNumber(value);
}

class LineChart {
  // options: series [{name, color, dash, x, y, low, high}] (low and high: a band around y, or none), xLabel, yLabel, log, fromZero, describe(x), onPick(index)
  constructor(node, options) {
    Object.assign(this, { node, options, now: null, active: null });
    this.tooltip = element("div", { class: "tooltip", hidden: "" });
    node.addEventListener("pointermove", (event) => this.hover(event));
    node.addEventListener("pointerdown", (event) => this.hover(event));
    node.addEventListener("pointerleave", () => this.activate(null));
    node.addEventListener("blur", () => this.activate(null));
    node.addEventListener("click", () => { if (this.active !== null && this.options.onPick) this.options.onPick(this.active); });
    node.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key], count = this.xs().length;
      if (!step) return;
      event.preventDefault();
      this.activate(Math.min(count - 1, Math.max(0, (this.active ?? (step > 0 ? -1 : count)) + step)));
    });
    new ResizeObserver(() => this.draw()).observe(node);
  }

  set(options) { Object.assign(this.options, options); this.active = null; this.draw(); }

  xs() {
    return this.options.series.reduce((longest, line) => (line.x.length > longest.length ? line.x : longest), []);
  }

  scales(width, height) {
    const { series, log, fromZero } = this.options, space = { left: 58, right: 14, top: 12, bottom: 44 };
    const usable = (value) => Number.isFinite(value) && value !== null && (!log || value > 0);
    const points = series.flatMap((line) => [line.y, line.low, line.high].filter(Boolean).flatMap((ys) => line.x.map((x, i) => [x, ys[i]]))).filter(([x, y]) => usable(x) && usable(y));
    const xs = points.map(([x]) => x), ys = points.map(([, y]) => y);
    let [x0, x1] = [Math.min(...xs), Math.max(...xs)], [y0, y1] = [Math.min(...ys), Math.max(...ys)];
    if (x0 === x1) { x0 -= 0.5; x1 += 0.5; }
    if (log) { y0 = Math.max(y0, y1 * 1e-9); if (y0 === y1) y0 = y1 / 10; y1 *= 1.5; y0 /= 1.5; }
    else { if (fromZero) y0 = 0; y1 += 0.06 * (y1 - y0 || 1); }
    const at = (value, low, high) => (log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low));
    return {
      space, usable, xTicks: log ? decadeTicks(x0, x1) : niceTicks(x0, x1, Math.max(3, width / 110)),
      yTicks: log ? decadeTicks(y0, y1) : niceTicks(y0, y1, 5), y0,
      x: (value) => space.left + at(value, x0, x1) * (width - space.left - space.right),
      y: (value) => height - space.bottom - at(value, y0, y1) * (height - space.top - space.bottom),
    };
  }

  draw() {
    const width = Math.max(260, this.node.clientWidth), height = Math.round(Math.min(380, Math.max(240, 0.45 * width)));
    const { series, xLabel, yLabel } = this.options, scale = this.scale = this.scales(width, height);
    const svg = svgElement("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": this.summary() });
    const { left, right, top, bottom } = scale.space;
    for (const tick of scale.yTicks) {
      svg.append(svgElement("line", { class: "grid", x1: left, x2: width - right, y1: scale.y(tick), y2: scale.y(tick) }),
        svgElement("text", { x: left - 9, y: scale.y(tick) + 4, "text-anchor": "end" }, tickLabel(tick)));
    }
    for (const tick of scale.xTicks) {
      svg.append(svgElement("text", { x: scale.x(tick), y: height - bottom + 20, "text-anchor": "middle" }, tickLabel(tick)));
    }
    svg.append(svgElement("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }),
      svgElement("text", { x: (left + width - right) / 2, y: height - 4, "text-anchor": "middle" }, xLabel),
      svgElement("text", { transform: `translate(13 ${(top + height - bottom) / 2}) rotate(-90)`, "text-anchor": "middle" }, yLabel));
    for (const line of series) if (line.low && line.high) svg.append(this.band(line, scale));
    for (const line of series) svg.append(this.path(line, scale));
    this.marks = svgElement("g");
    svg.append(this.marks);
    this.node.replaceChildren(svg, this.tooltip, this.legend());
    this.size = { width, height };
    this.drawMarks();
  }

  path(line, scale) {
    let text = "", pen = "M";
    line.x.forEach((x, i) => {
      if (!scale.usable(line.y[i]) || !scale.usable(x) || (this.options.log && line.y[i] < scale.y0)) { pen = "M"; return; }
      text += `${pen}${scale.x(x).toFixed(1)} ${scale.y(line.y[i]).toFixed(1)}`;
      pen = "L";
    });
    return svgElement("path", { class: "series", d: text, stroke: line.color, "stroke-dasharray": line.dash || "none", "data-name": line.name, ...(line.wide ? { style: "stroke-width:5;opacity:.28" } : {}) });
  }

  band(line, scale) {
    const corner = (ys) => (i) => `${scale.x(line.x[i]).toFixed(1)} ${scale.y(ys[i]).toFixed(1)}`, order = line.x.map((_, i) => i);
    const outline = [...order.map(corner(line.high)), ...order.reverse().map(corner(line.low))];
    return svgElement("path", { class: "band", d: `M${outline.join("L")}Z`, fill: line.color, "fill-opacity": 0.16, "data-name": line.name });
  }

  legend() {
    return element("div", { class: "legend" }, ...this.options.series.map((line) => element("span", {},
      svgElement("svg", { viewBox: "0 0 28 8", "aria-hidden": "true" }, svgElement("path", { d: "M1 4H27", stroke: line.color, "stroke-width": 2.6, "stroke-dasharray": line.dash || "none", "stroke-linecap": "round", ...(line.wide ? { "stroke-width": 5, opacity: 0.28 } : {}) })),
      line.name)));
  }

  summary() {
    const { series, yLabel } = this.options;
    return `${yLabel}: ` + series.map((line) => `${line.name} from ${formatNumber(line.y[0])} to ${formatNumber(line.y[line.y.length - 1])}`).join("; ");
  }

  hover(event) {
    const box = this.node.getBoundingClientRect(), x = (event.clientX - box.left) * this.size.width / box.width;
    if (event.clientY - box.top > this.size.height) { this.activate(null); return; }
    const distances = this.xs().map((value) => (this.scale.usable(value) ? Math.abs(this.scale.x(value) - x) : Infinity));
    this.activate(distances.indexOf(Math.min(...distances)));
  }

  activate(index) { if (this.active !== index) { this.active = index; this.drawMarks(); } }

  follow(index) { this.now = index; if (this.marks) this.drawMarks(); }

  drawMarks() {
    const { scale, size } = this, xs = this.xs(), { top, bottom } = scale.space;
    const rule = (x, name) => svgElement("line", { class: name, x1: scale.x(x), x2: scale.x(x), y1: top, y2: size.height - bottom });
    this.marks.replaceChildren();
    if (this.now !== null && this.now < xs.length) this.marks.append(rule(xs[this.now], "now"));
    this.tooltip.hidden = this.active === null;
    if (this.active === null) return;
    const x = xs[this.active], rows = [];
    this.marks.append(rule(x, "cursor"));
    for (const line of this.options.series) {
      const y = line.y[line.x.indexOf(x)];
      if (scale.usable(y)) this.marks.append(svgElement("circle", { class: "dot", cx: scale.x(x), cy: scale.y(y), r: 4.5, fill: line.color }));
      const label = element("span", {}, element("i", { style: `background:${line.color}` }), line.name);
      rows.push(element("div", {}, label, element("b", {}, this.options.format(y))));
    }
    this.tooltip.replaceChildren(element("p", {}, this.options.describe(x, this.active)), ...rows);
    const right = scale.x(x) > size.width / 2, edge = 14;
    this.tooltip.style.left = right ? "auto" : `${scale.x(x) + edge}px`;
    this.tooltip.style.right = right ? `${size.width - scale.x(x) + edge}px` : "auto";
  }
}
