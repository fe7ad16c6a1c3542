"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const NARROW = 620;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const config = { displayModeBar: false, responsive: false, scrollZoom: false, doubleClick: false, showTips: false };
  const measure = document.createElement("canvas").getContext("2d");

  // Plotly reads tags and entities in texts; these are to be shown as they are.
  function escaped(text) {
    return text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  }

  function css(name) {
    return getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  }

  function coloured(value) {
    if (Array.isArray(value)) return value.map(coloured);
    if (value === null || typeof value !== "object") return value;
    if (typeof value.css === "string") return css(value.css);
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, coloured(inner)]));
  }

  function width(text, font) {
    measure.font = font;
    return measure.measureText(text).width;
  }

  // Cut in the middle: names begin with their family and end with their value.
  function cut(text, font, room) {
    if (width(text, font) <= room) return text;
    const whole = Array.from(text);
    const kept = (num) => {
      const head = Math.ceil(num / 2);
      return whole.slice(0, head).join("") + "…" + whole.slice(whole.length - (num - head)).join("");
    };
    let fits = 4, over = whole.length;
    while (over - fits > 1) {
      const middle = Math.floor((fits + over) / 2);
      if (width(kept(middle), font) <= room) fits = middle;
      else over = middle;
    }
    return kept(fits);
  }

  function trace(raw) {
    const { hover, ...rest } = raw;
    const made = coloured(rest);
    made.hoverinfo = "text";
    made.hovertext = hover.map((lines) => lines.map(escaped).join("<br>"));
    made.textposition = "none";
    made.showlegend = false;
    made.cliponaxis = false;
    if (made.type === "bar") delete made.cliponaxis;
    return made;
  }

  // Whether the labels take more than their part of a small screen.
  function above(figure, room, sizes) {
    return room < NARROW && figure.rows.some((row) => width(row.text, row.head ? sizes.head : sizes.label) > 0.3 * room);
  }

  // Labels stand left of their row where there is room, above it where there is not.
  function rows(figure, room, sizes) {
    const narrow = above(figure, room, sizes);
    const annotations = [];
    let left = 0;
    for (const row of figure.rows) {
      const font = row.head ? sizes.head : sizes.label;
      const size = row.head ? sizes.headSize : sizes.labelSize;
      const weight = row.head ? 600 : 400;
      const most = narrow ? room - 8 : Math.min(0.42 * room, 420);
      const text = cut(row.text, font, most);
      if (!narrow) left = Math.max(left, width(text, font));
      annotations.push({
        xref: "paper", yref: "y", x: 0, y: row.y,
        xanchor: narrow ? "left" : "right", xshift: narrow ? 0 : -14,
        yanchor: narrow && !row.head ? "bottom" : "middle", yshift: narrow && !row.head ? 6 : 0,
        align: narrow ? "left" : "right", showarrow: false, text: escaped(text),
        font: { family: row.head ? sizes.sans : sizes.family, size: size, color: css(row.head ? "muted" : "ink"), weight: weight },
      });
      if (row.note) {
        annotations.push({
          xref: "paper", yref: "y", x: 0, y: row.y, xanchor: "left", yanchor: "middle", xshift: narrow ? 0 : 8, yshift: narrow ? -6 : 0,
          showarrow: false, bgcolor: css("surface"), text: escaped(row.note), font: { size: 12, color: css("muted") },
        });
      }
    }
    return { narrow: narrow, annotations: annotations, left: narrow ? 8 : Math.ceil(left) + 22 };
  }

  function layout(figure, room) {
    const sans = css("sans"), mono = css("mono");
    const code = figure.rows.some((row) => row.text.includes("="));
    const labelSize = code ? 12 : 13;
    const sizes = {
      sans: sans, family: code ? mono : sans, labelSize: labelSize, headSize: 12,
      label: labelSize + "px " + (code ? mono : sans), head: "600 12px " + sans,
    };
    const found = rows(figure, room, sizes);
    const narrow = found.narrow;
    const each = (figure.row_height || 34) + (narrow ? 10 : 0);
    const made = coloured(figure.layout);
    const first = figure.rows[0].y, last = figure.rows[figure.rows.length - 1].y;
    const axis = { color: css("muted"), gridcolor: css("grid"), linecolor: css("line"), zerolinecolor: css("line"), tickfont: { size: 12 }, fixedrange: true };
    made.xaxis = Object.assign({}, axis, { automargin: false, ticks: "", zeroline: false }, made.xaxis);
    if (made.xaxis.nticks && room < NARROW) made.xaxis.nticks = Math.min(made.xaxis.nticks, 5);
    made.yaxis = Object.assign({}, axis, { range: [last + 0.6, first - (narrow ? 0.85 : 0.6)], showgrid: false, zeroline: false, showticklabels: false, ticks: "" });
    made.annotations = found.annotations;
    const top = made.xaxis.side === "top";
    made.margin = { l: found.left, r: 18, t: top ? 30 : 4, b: top ? 6 : 32, pad: 0 };
    made.height = Math.round(each * (last - first + 1.2)) + 40;
    made.width = room;
    made.autosize = false;
    made.dragmode = false;
    made.hovermode = "closest";
    made.paper_bgcolor = "rgba(0,0,0,0)";
    made.plot_bgcolor = "rgba(0,0,0,0)";
    made.font = { family: sans, size: 13, color: css("ink") };
    made.hoverlabel = { bgcolor: css("surface"), bordercolor: css("line"), font: { family: sans, size: 13, color: css("ink") }, align: "left", namelength: 0 };
    made.bargap = 0.3;
    return made;
  }

  async function draw(place, room) {
    const figure = figures[place.dataset.figure];
    if (!place.dataset.drawn) place.textContent = "";
    await Plotly.react(place, figure.data.map(trace), layout(figure, room), config);
    place.dataset.drawn = String(room);
  }

  async function drawAll() {
    for (const place of document.querySelectorAll(".plot")) {
      const room = Math.floor(place.clientWidth);
      if (!room) continue;
      try {
        await draw(place, room);
      } catch (error) {
        console.error(error);
        place.textContent = "The plot could not be drawn; the table has its numbers.";
      }
    }
    document.documentElement.dataset.drawn = String(document.querySelectorAll(".plot[data-drawn]").length);
  }

  // Tables beside plots are long on a small screen: they wait there until they are asked for.
  const small = window.matchMedia("(max-width: 40rem)");
  function fold(folded) {
    for (const numbers of document.querySelectorAll(".numbers")) numbers.open = !folded;
  }
  small.addEventListener("change", () => fold(small.matches));
  window.addEventListener("beforeprint", () => fold(false));
  fold(small.matches);

  let waiting = 0;
  let wide = window.innerWidth;
  window.addEventListener("resize", function () {
    if (window.innerWidth === wide) return;
    wide = window.innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(drawAll, 120);
  });
  dark.addEventListener("change", drawAll);
  drawAll();
})();
