"use strict";
// Sorting and filtering of tables. The page is complete without it; nothing is loaded, nothing is sent.
(function () {
  function key(row, column) {
    const cell = row.cells[column];
    if (!cell) { return ""; }
    return cell.dataset.sort !== undefined ? cell.dataset.sort : cell.textContent.trim();
  }

  // Numbers before words, what has no value last in either direction.
  function compare(a, b, down) {
    if (a === "" || b === "") { return (a === "") - (b === ""); }
    const x = Number(a), y = Number(b);
    const numbers = [Number.isNaN(x), Number.isNaN(y)];
    if (numbers[0] !== numbers[1]) { return numbers[0] - numbers[1]; }
    const order = numbers[0] ? a.localeCompare(b, "en", { numeric: true }) : x - y;
    return down ? -order : order;
  }

  function sort(table, column, header) {
    const down = header.getAttribute("aria-sort") === "ascending";
    for (const other of table.tHead.rows[0].cells) { other.removeAttribute("aria-sort"); }
    header.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = Array.from(table.tBodies[0].rows);
    rows.sort(function (one, two) { return compare(key(one, column), key(two, column), down); });
    table.tBodies[0].append(...rows);
  }

  function makeSortable(table) {
    if (!table.tHead || !table.tBodies.length) { return; }
    Array.from(table.tHead.rows[0].cells).forEach(function (header, column) {
      header.tabIndex = 0;
      header.title = header.title || "sort";
      header.addEventListener("click", function () { sort(table, column, header); });
      header.addEventListener("keydown", function (event) {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(table, column, header); }
      });
    });
  }

  function filter(tools, table) {
    const text = tools.querySelector("[data-filter=text]").value.trim().toLowerCase();
    const choice = tools.querySelector("[data-filter=word]");
    const word = choice ? choice.value : "";
    const rows = Array.from(table.tBodies[0].rows);
    let shown = 0;
    for (const row of rows) {
      const words = (row.dataset.words || "").split(" ");
      const visible = row.textContent.toLowerCase().includes(text) && (!word || words.includes(word));
      row.hidden = !visible;
      shown += visible ? 1 : 0;
    }
    tools.querySelector("[data-count]").textContent = shown + " of " + rows.length + " rows";
  }

  // A link to a cell opens the section that it leads to.
  function openTarget() {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target && target.tagName === "DETAILS") { target.open = true; }
  }

  document.querySelectorAll("table.sortable").forEach(makeSortable);
  document.querySelectorAll(".tools").forEach(function (tools) {
    const table = document.getElementById(tools.dataset.table);
    tools.hidden = false;
    tools.addEventListener("input", function () { filter(tools, table); });
    filter(tools, table);
  });
  window.addEventListener("hashchange", openTarget);
  openTarget();
})();
