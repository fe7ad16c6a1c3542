"use strict";
// Each plot: its title, its lines by the server's series (name, column of the row, what it is called), and its axis.
const MEAN = 1, MOST = 2, MOST_ROWS = 1800, LATE_S = 5;
const PLOTS = [
  ["Step time", [["step", MEAN, "mean"], ["step", MOST, "longest"]], { ticksuffix: "s" }],
  ["Wait for input in a step", [["wait", MEAN, "wait"]], { ticksuffix: "s" }],
  ["GPU at work", [["gpu.kernel_running_percent", MEAN, "kernels run"],
    ["gpu.sm_active_percent", MEAN, "SM active"], ["gpu.tensor_active_percent", MEAN, "tensor active"]],
  { ticksuffix: "%", range: [0, 100] }],
  ["GPU memory in use", [["gpu.memory_used_bytes", MEAN, "memory"]], { ticksuffix: "B" }],
  ["Power", [["gpu.power_w", MEAN, "power"]], { ticksuffix: "W" }],
  ["Cores kept busy", [["cores", MEAN, "cores"]], {}],
  ["Memory of the run's processes", [["rss", MEAN, "memory"]], { ticksuffix: "B" }],
];
const series = {};
const root = document.documentElement;
let view = {};
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
const moment = (at) => new Date(1000 * (at - view.at_s + view.clock_s));

function made(kind, text, ...children) {
  const element = document.createElement(kind);
  element.textContent = text;
  element.append(...children);
  return element;
}

function say(id, text) {
  if ($(id).textContent !== text) $(id).textContent = text;
}

function merge(more) {
  for (const [name, all] of Object.entries(more)) {
    for (const [whose, rows] of Object.entries(all)) {
      const first = rows.length ? rows[0][0] : Infinity;
      const kept = (series[name]?.[whose] || []).filter((row) => row[0] < first);
      (series[name] ??= {})[whose] = [...kept, ...rows].slice(-MOST_ROWS);
    }
  }
}

function traces(lines) {
  return lines.flatMap(([name, column, called]) => Object.entries(series[name] || {}).map(([whose, rows]) => ({
    name: Object.keys(series[name]).length > 1 ? `${called} ${whose}` : called,
    x: rows.map((row) => moment(row[0])), y: rows.map((row) => row[column]), mode: "lines",
  })));
}

function layout(place, axis) {
  const grid = { color: css("muted"), gridcolor: css("grid"), zeroline: false, fixedrange: true };
  const line = (mark) => ({ type: "line", yref: "paper", y0: 0, y1: 1, x0: moment(mark.at_s), x1: moment(mark.at_s),
    line: { width: 1, dash: "dot", color: css(mark.kind === "bottleneck" ? "accent" : "muted") } });
  return { width: place.clientWidth, height: 220, margin: { l: 64, r: 8, t: 8, b: 28 }, hovermode: "x", dragmode: false,
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("ink") }, shapes: view.marks.map(line),
    colorway: [css("accent"), css("muted"), css("ink"), css("part-other")], legend: { orientation: "h", y: 1.15 },
    xaxis: grid, yaxis: { ...grid, rangemode: "tozero", exponentformat: "SI", ...axis } };
}

function draw() {
  PLOTS.forEach((plot) => {
    const lines = traces(plot[1]);
    if (!lines.length) return;
    const figure = plot.figure ??= made("figure", "", made("div", ""), made("figcaption", ""));
    figure.className = "plot";
    if (!figure.isConnected) $("plots").append(made("section", "", made("h2", plot[0]), figure));
    Plotly.react(figure.firstChild, lines, layout(figure, plot[2]), { displayModeBar: false });
    const newest = (line) => Number(Number(line.y.at(-1)).toPrecision(3)).toLocaleString("en");
    const now = lines.map((line) => `${line.name} ${newest(line)} ${plot[2].ticksuffix || ""}`.trim());
    figure.lastChild.textContent = `Now: ${now.join(", ")}`;
  });
}

function table([title, columns, rows]) {
  const row = (kind, cells) => made("tr", "", ...cells.map((cell) => made(kind, cell)));
  const body = made("table", "", made("caption", title), row("th", columns), ...rows.map((cells) => row("td", cells)));
  body.querySelectorAll("th").forEach((head) => head.scope = "col");
  const scroll = made("div", "", body);
  Object.assign(scroll, { className: "scroll", tabIndex: 0, role: "region", ariaLabel: title });
  return scroll;
}

function show() {
  say("command", view.command.join(" "));
  say("verdict", view.verdict);
  say("state", view.state === "ended" ? "The program has ended" : view.state);
  say("clock", moment(view.at_s).toLocaleTimeString());
  $("state").dataset.state = view.state;
  const alerts = view.alerts.map((alert) => made("li", `${alert.id}: ${alert.text}`,
    made("ul", "", ...alert.details.map((line) => made("li", line)))));
  if (alerts.map((each) => each.textContent).join("") !== $("alerts").textContent) $("alerts").replaceChildren(...alerts);
  const marks = view.marks.slice(-20).reverse();
  $("marks").replaceChildren(...marks.map((mark) => made("li", `step ${mark.step.toLocaleString("en")}: ${mark.kind}, ${mark.text}`)));
  if (!document.hidden) draw();
  root.dataset.views = 1 + Number(root.dataset.views || 0);
}

async function ask() {
  try {
    const since = Math.max(-Infinity, ...Object.values(series.step || {}).map((rows) => rows.at(-1)[0])) - LATE_S;
    const asked = new URLSearchParams(location.search);
    if (isFinite(since)) asked.set("since", since);
    const told = await (await fetch(`page.json?${asked}`)).json();
    if (told.view) {
      view = told.view;
      merge(told.series);
      $("tables").replaceChildren(...told.tables.map(table));
      $("notes").replaceChildren(...[...view.notes, ...told.unknown].map((note) => made("li", note)));
      show();
    }
  } catch (error) {
    $("state").dataset.state = "lost";
    say("state", "No answer any more: dynotune has ended, or cannot be reached. This is the last that it said.");
  }
  if (view.state !== "ended") setTimeout(ask, 1000);
}

ask();
addEventListener("resize", () => view.at_s !== undefined && draw());
