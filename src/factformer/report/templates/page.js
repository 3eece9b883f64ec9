// Wiring: the data of the page to player, charts and table.
function tabs(node, names, choose) {
  if (names.length < 2) return;
  node.replaceChildren(...names.map((name, i) => {
    const button = element("button", { type: "button", role: "tab", "aria-selected": String(i === 0) }, name);
    button.addEventListener("click", () => {
      for (const other of node.children) other.setAttribute("aria-selected", String(other === button));
      choose(name);
    });
    return button;
  }));
}

function chartOf(id, groups, options) {
  const node = document.getElementById(id), names = Object.keys(groups);
  if (!node || !names.length) return null;
  const chart = new LineChart(node, { ...options, series: groups[names[0]] });
  tabs(document.getElementById(`${id}-tabs`), names, (name) => chart.set({ series: groups[name] }));
  return chart;
}

function sortable(table) {
  const body = table.tBodies[0], heads = [...[...table.tHead.rows].at(-1).cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    for (const other of heads) other.setAttribute("aria-sort", other === head ? order : "none");
    const numeric = head.classList.contains("number"), sign = order === "ascending" ? 1 : -1;
    const rows = [...body.rows].map((row) => [row.cells[column].dataset.value, row]);
    rows.sort(([a], [b]) => {
      if (a === "" || b === "") return (a === "") - (b === ""); // missing values last, whatever the order
      return sign * (numeric ? Number(a) - Number(b) : a.localeCompare(b));
    });
    body.append(...rows.map(([, row]) => row));
  }));
}

function copyButtons() {
  for (const button of document.querySelectorAll(".copy")) {
    button.addEventListener("click", async () => {
      const code = button.parentElement.querySelector("code");
      try { await navigator.clipboard.writeText(code.textContent); button.textContent = "Copied"; }
      catch { getSelection().selectAllChildren(code); button.textContent = "Selected"; }
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }
}

const page = JSON.parse(document.getElementById("data").textContent);
const time = (x) => (page.timing.dt ? `t = ${formatNumber(x, 4)}` : `frame ${x}`);
const player = page.player ? new Player(page.player, page.maps, page.timing) : null;
const trend = chartOf("trend", page.trend, {
  xLabel: page.timing.dt ? "time after the last known frame" : "frame", yLabel: "relative L² error", fromZero: true, format: formatError,
  describe: (x, index) => (page.timing.dt ? `frame ${index + 1}, ${time(x)}` : time(x)),
  onPick: (index) => { if (player) { player.pause(); player.show(index); } },
});
chartOf("spectra", page.spectra, {
  xLabel: "wavenumber", yLabel: "energy", log: true, format: (value) => formatNumber(value), describe: (x) => `wavenumber ${formatNumber(x)}`,
});
if (player && typeof DecompressionStream === "undefined") {
  document.querySelector(".screens").replaceChildren("This browser is too old to unpack the frames; all numbers are below.");
} else if (player) {
  if (trend && page.player.frames > 1) player.listeners.push((frame) => trend.follow(frame));
  player.select();
}
sortable(document.getElementById("comparison"));
copyButtons();
