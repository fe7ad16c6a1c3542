"use strict";
// Asks the server for the page's parts and for values, brings the page's elements up to date, and draws plots. Texts were
// escaped by the server, and the policy of the page runs no script of theirs.
const MEAN = 1, MOST_ROWS = 1800, LATE_S = 5;
const series = {};
const root = document.documentElement;
let told = { at_s: 0, clock_s: 0, marks_s: [] };
const css = (name) => getComputedStyle(root).getPropertyValue("--" + name).trim();
const moment = (at) => at - told.at_s + told.clock_s;

// Elements that are of one kind stay, so that what is selected, opened or focused stays, too.
function morph(old, made) {
  for (const { name, value } of [...made.attributes]) {
    if (name !== "open" && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (name !== "open" && name !== "style" && !made.hasAttribute(name)) old.removeAttribute(name);
  }
  if (old.hasAttribute("data-plot")) return;
  const before = [...old.childNodes], after = [...made.childNodes];
  after.forEach((node, at) => {
    const known = before[at];
    if (!known) old.append(node);
    else if (known.nodeType !== node.nodeType || known.nodeName !== node.nodeName || known.id !== node.id) known.replaceWith(node);
    else if (node.nodeType === Node.ELEMENT_NODE) morph(known, node);
    else if (known.data !== node.data) known.data = node.data;
  });
  before.slice(after.length).forEach((node) => node.remove());
}

function show(element, html) {
  if (html === null || html === undefined) return;
  const made = element.cloneNode(false);
  made.innerHTML = html;
  morph(element, made);
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

// One column of times, and one of values a line: uPlot joins lines whose times differ. Several ranks have a line each,
// and then the longest steps would be too many lines.
function joined(plot) {
  const isDrawn = ([name, column]) => column === MEAN || Object.keys(series[name] || {}).length < 2;
  const lines = plot.curves.filter(isDrawn).flatMap(([name, column, called]) => Object.entries(series[name] || {}).map(([whose, rows]) => ({
    name: Object.keys(series[name]).length > 1 ? `${called} ${whose}` : called,
    rows: [rows.map((row) => moment(row[0])), rows.map((row) => row[column] * plot.scale)],
  })));
  return { names: lines.map((line) => line.name), data: lines.length ? uPlot.join(lines.map((line) => line.rows)) : null };
}

// An epoch is no event: only what changes the verdict stands in the plots.
function marked(chart) {
  const { ctx, bbox } = chart;
  ctx.save();
  ctx.strokeStyle = css("bad");
  ctx.setLineDash([3, 4]);
  for (const at of told.marks_s) {
    const x = chart.valToPos(moment(at), "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width) continue;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
  }
  ctx.restore();
}

const time = (at) => new Date(1000 * at).toLocaleTimeString("en-GB");
const colours = () => ["accent", "wary", "part-communication", "muted"].map(css);

function options(plot, names, width) {
  const axis = { stroke: css("muted"), grid: { stroke: css("grid"), width: 1 }, ticks: { show: false } };
  const line = (name, at) => ({ label: name, stroke: colours()[at % colours().length], width: 1.5, points: { show: false }, spanGaps: true });
  return {
    width, height: 190, cursor: { y: false }, legend: { show: false }, hooks: { draw: [marked] },
    series: [{}, ...names.map(line)],
    scales: { y: { range: (chart, low, high) => [0, plot.most ?? (high > 0 ? 1.05 * high : 1)] } },
    axes: [{ ...axis, size: 34, space: 90, values: (chart, ticks) => ticks.map(time) }, { ...axis, size: 70, values: (chart, ticks) => ticks.map((tick) => written(tick, plot.unit)) }],
  };
}

function written(value, unit = "") {
  if (value === null || value === undefined) return "–";
  const number = Math.abs(value) >= 1000 ? Math.round(value) : Number(value.toPrecision(3));
  return `${number.toLocaleString("en")}${unit && ` ${unit}`}`;
}

function made(kind, text, ...children) {
  const element = document.createElement(kind);
  element.append(...children, text);
  return element;
}

function key(colour) {
  const element = made("span", "");
  element.className = "key";
  element.style.background = colour;
  return element;
}

function draw(figure) {
  const plot = JSON.parse(figure.dataset.plot);
  const { names, data } = joined(plot);
  if (!names.length) return;
  const look = [figure.clientWidth, css("ink"), ...names].join();
  if (figure.look !== look) {
    figure.look = look;
    figure.chart?.destroy();
    figure.chart = new uPlot(options(plot, names, figure.clientWidth), data, figure.firstElementChild);
  } else figure.chart.setData(data);
  const newest = names.map((name, at) => made("span", `${name} ${written(data[at + 1].findLast((value) => value != null), plot.unit)}`,
    key(colours()[at % colours().length])));
  figure.dataset.lines = names.length;
  figure.lastElementChild.replaceChildren(...newest);
}

const drawAll = () => { if (!document.hidden) document.querySelectorAll("[data-plot]").forEach(draw); };

const lost = document.getElementById("lost");
const NO_ANSWER = lost.textContent;

function lose(text) {
  lost.textContent = text;
  lost.hidden = false;
  root.dataset.lost = "yes";
}

async function ask() {
  try {
    const since = Math.max(-Infinity, ...Object.values(series.step || {}).map((rows) => rows.at(-1)[0])) - LATE_S;
    const asked = new URLSearchParams(location.search);
    if (isFinite(since)) asked.set("since", since);
    if (told.story_version) asked.set("story", told.story_version);
    const answer = await fetch(`page.json?${asked}`);
    if (answer.ok) {
      told = { ...told, ...await answer.json() };
      merge(told.series || {});
      show(document.getElementById("answer"), told.header);
      show(document.querySelector("nav"), told.nav);
      show(document.getElementById("story"), told.story);
      drawAll();
      root.dataset.views = 1 + Number(root.dataset.views || 0);
      lost.hidden = true;
    } else lose(`dynotune answered with ${answer.status}: ${await answer.text()}`);
  } catch (error) {
    lose(NO_ANSWER);
  }
  if (!told.is_over) setTimeout(ask, 1000 * (told.again_s || 1));
  root.dataset.over = Boolean(told.is_over);
}

ask();
addEventListener("resize", drawAll);
addEventListener("visibilitychange", drawAll);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
