"use strict";
// Each plot: its title, its lines by the server's series (name, column of the row, what it is called), and its axis.
const MEAN = 1, MOST = 2, MOST_ROWS = 1800, MOST_MARKS = 5, LATE_S = 5;
const GIB = 2 ** -30;
const PLOTS = [
  ["Step time", [["step", MEAN, "mean"], ["step", MOST, "longest"]], { unit: "ms", scale: 1000 }],
  ["Wait for input in a step", [["wait", MEAN, "wait"]], { unit: "ms", scale: 1000 }],
  ["GPU at work", [["gpu.kernel_running_percent", MEAN, "kernels run"],
    ["gpu.sm_active_percent", MEAN, "SM active"], ["gpu.tensor_active_percent", MEAN, "tensor active"]],
  { unit: "%", range: [0, 100] }],
  ["GPU memory in use", [["gpu.memory_used_bytes", MEAN, "memory"]], { unit: "GiB", scale: GIB }],
  ["Power", [["gpu.power_w", MEAN, "power"]], { unit: "W" }],
  ["Cores kept busy", [["cores", MEAN, "this run"], ["others", MEAN, "other programs"]], {}],
  ["Memory of the run's processes", [["rss", MEAN, "memory"]], { unit: "GiB", scale: GIB }],
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

// One column of times, and one of values a line: uPlot joins lines whose times differ.
function joined(plot) {
  const lines = plot[1].flatMap(([name, column, called]) => Object.entries(series[name] || {}).map(([whose, rows]) => ({
    name: Object.keys(series[name]).length > 1 ? `${called} ${whose}` : called,
    rows: [rows.map((row) => moment(row[0]) / 1000), rows.map((row) => row[column] * (plot[2].scale || 1))],
  })));
  return { names: lines.map((line) => line.name), data: lines.length ? uPlot.join(lines.map((line) => line.rows)) : null };
}

// An epoch is no event: only what changes the verdict stands in the plots.
function marked(chart) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = css("bad");
  ctx.setLineDash([3, 4]);
  for (const mark of view.marks.filter((one) => one.kind === "bottleneck")) {
    const x = chart.valToPos(moment(mark.at_s) / 1000, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

function options(plot, names, width) {
  const axis = { stroke: css("muted"), grid: { stroke: css("grid"), width: 1 }, ticks: { show: false } };
  const colours = [css("accent"), css("muted"), css("wary"), css("part-communication")];
  const line = (name, at) => ({ label: name, stroke: colours[at % colours.length], width: 1.5, points: { show: false }, spanGaps: true });
  return {
    width, height: 200, cursor: { y: false }, legend: { show: false }, hooks: { draw: [marked] },
    series: [{}, ...names.map(line)],
    scales: { y: { range: (chart, low, high) => plot[2].range || [0, high > 0 ? 1.05 * high : 1] } },
    axes: [axis, { ...axis, size: 64, values: (chart, ticks) => ticks.map((tick) => written(tick, plot[2].unit)) }],
  };
}

function written(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const number = Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3));
  return `${number.toLocaleString("en")}${unit && ` ${unit}`}`;
}

function draw() {
  for (const plot of PLOTS) {
    const { names, data } = joined(plot);
    if (!names.length) continue;
    const figure = plot.figure ??= made("figure", "", made("div", ""), made("figcaption", ""));
    figure.className = "plot";
    if (!figure.isConnected) $("plots").append(made("section", "", made("h2", plot[0]), figure));
    const look = [figure.clientWidth, css("ink"), ...names].join();
    if (figure.look !== look) {
      figure.look = look;
      figure.chart?.destroy();
      figure.chart = new uPlot(options(plot, names, figure.clientWidth), data, figure.firstChild);
    } else figure.chart.setData(data);
    const newest = names.map((name, at) => `${name} ${written(data[at + 1].findLast((value) => value != null), plot[2].unit)}`);
    figure.dataset.lines = names.length;
    figure.lastChild.textContent = `Now: ${newest.join(", ")}`;
  }
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
  const marks = view.marks.filter((mark) => mark.kind !== "epoch").slice(-MOST_MARKS).reverse();
  $("marks").parentElement.hidden = !marks.length;
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
      const notes = [...view.notes, ...told.unknown];
      $("notes").replaceChildren(...notes.map((note) => made("li", note)));
      $("notes").parentElement.hidden = !notes.length;
      show();
    }
  } catch (error) {
    $("state").dataset.state = "lost";
    say("state", "No answer any more: dynotune has ended, or cannot be reached. This is the last that it said.");
  }
  if (view.state !== "ended") setTimeout(ask, 1000);
}

ask();
const again = () => view.at_s !== undefined && draw();
addEventListener("resize", again);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
