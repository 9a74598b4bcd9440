"use strict";
// Draws the figures of a report in the reader's colour scheme and sorts its tables. No request is ever made.
(function () {
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const themes = read("themes");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 640px)");
  const touch = window.matchMedia("(pointer: coarse)");
  const buttons = ["downloadJson", "select2d", "lasso2d", "autoScale2d", "zoomIn2d", "zoomOut2d"];

  function draw(plot) {
    const figure = read(plot.id + "-data");
    const layout = figure.layout;
    layout.template = dark.matches ? themes.dark : themes.light;
    if (narrow.matches && !plot.classList.contains("wide")) {
      layout.margin = Object.assign({}, layout.margin, { l: 48, r: 8 });
      layout.font = { size: 11 };
      layout.legend = Object.assign({}, layout.legend, { font: { size: 10 } });
      layout.hoverlabel = { font: { size: 10 } };
    }
    const isPlain = touch.matches || narrow.matches || plot.closest(".slices");
    // A finger that scrolls the page must not zoom a figure.
    if (touch.matches) layout.dragmode = false;
    Plotly.react(plot, figure.data, layout, {
      responsive: true,
      displaylogo: false,
      showSendToCloud: false,
      plotlyServerURL: "",
      modeBarButtonsToRemove: buttons,
      displayModeBar: isPlain ? false : "hover",
    });
  }

  const plots = Array.from(document.querySelectorAll(".plot"));
  plots.forEach(draw);
  dark.addEventListener("change", () => plots.forEach(draw));
  narrow.addEventListener("change", () => plots.forEach(draw));

  // A cell's data-value is what it sorts by; cells without one stay last in both directions.
  function compare(first, second) {
    const difference = Number(first) - Number(second);
    return Number.isNaN(difference) ? first.localeCompare(second) : difference;
  }

  document.querySelectorAll("table.sortable").forEach((table) => {
    const heads = Array.from(table.tHead.rows[0].cells);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const falling = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", falling ? "descending" : "ascending");
        const body = table.tBodies[0];
        const keyed = Array.from(body.rows, (row) => [row.cells[column].dataset.value, row]);
        const missing = keyed.filter(([key]) => key === undefined);
        const known = keyed.filter(([key]) => key !== undefined);
        known.sort((a, b) => (falling ? -1 : 1) * compare(a[0], b[0]));
        known.concat(missing).forEach(([, row]) => body.appendChild(row));
      });
    });
  });
})();
