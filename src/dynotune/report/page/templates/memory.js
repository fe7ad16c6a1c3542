"use strict";
(function () {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();
  // Plotly reads tags and entities in texts; these are to be shown as they are.
  const escaped = (text) => text.replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");

  for (const place of document.querySelectorAll(".plot")) {
    const figure = figures[place.dataset.figure];
    const data = figure.terms.map((term) => ({
      type: "scatter", mode: "lines", stackgroup: "terms", line: { width: 0.5, color: term.colour },
      fillcolor: term.colour, name: escaped(term.name), x: figure.events, y: term.gib, hoverinfo: "text",
      hovertext: term.gib.map((gib, at) =>
        escaped(term.name) + ": " + gib.toFixed(3) + " GiB" + (figure.modules[at] ? "<br>" + escaped(figure.modules[at]) : "")),
    }));
    const axis = { color: css("muted"), gridcolor: css("grid"), linecolor: css("line") };
    place.textContent = "";
    Plotly.newPlot(place, data, {
      height: 420, margin: { l: 60, r: 10, t: 10, b: 45 }, hovermode: "x unified",
      xaxis: Object.assign({ title: { text: "allocations and releases" } }, axis),
      yaxis: Object.assign({ title: { text: "GiB" }, rangemode: "tozero" }, axis),
      shapes: figure.steps.map((at) => ({ type: "line", yref: "paper", x0: at, x1: at, y0: 0, y1: 1, line: { color: css("muted"), width: 1, dash: "dot" } })),
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: css("ink") },
      legend: { orientation: "h", y: -0.2 }, hoverlabel: { bgcolor: css("surface"), font: { color: css("ink") } },
    }, { responsive: true, displaylogo: false });
  }
})();
