"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  const all = (selector, from = document) => [...from.querySelectorAll(selector)];

  // Copy. Where a browser gives a page out of a file no clipboard, the text is selected instead.
  const select = (elements) => {
    const range = document.createRange();
    range.setStartBefore(elements[0]);
    range.setEndAfter(elements[elements.length - 1]);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
  };
  const copy = async (button, elements) => {
    const text = elements.map((one) => one.textContent).join("\n");
    const told = document.getElementById("copied");
    const before = button.textContent;
    told.textContent = "";
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      button.classList.add("done");
      told.textContent = `Copied: ${text}`;
    } catch {
      select(elements);
      button.textContent = "Selected";
      told.textContent = "Selected; copy it by hand";
    }
    setTimeout(() => { button.textContent = before; button.classList.remove("done"); }, 1600);
  };
  for (const button of all("button[data-copy]"))
    button.addEventListener("click", () => copy(button, [document.getElementById(button.dataset.copy)]));
  for (const button of all("button[data-copies]"))
    button.addEventListener("click", () => copy(button, all(`code[data-group="${button.dataset.copies}"]`)));

  // The mesh, and each rail's rates: one stop of the Tab key, arrows inside.
  for (const mesh of all(".mesh")) {
    const readout = mesh.closest("section").querySelector(".readout");
    const rows = all('[role="row"]', mesh).map((row) => all('[role="gridcell"]', row)).filter((row) => row.length);
    const tell = (event) => {
      const says = event.target.getAttribute("aria-label");
      if (says && event.target.matches(".cell")) readout.textContent = says;
    };
    // On the element around it: a picture that listens for the focus becomes a stop of its own in Chromium.
    const around = mesh.parentElement;
    around.addEventListener("pointerover", tell);
    around.addEventListener("focusin", tell);
    const go = (cell) => {
      for (const old of all('[tabindex="0"]', mesh)) old.setAttribute("tabindex", "-1");
      cell.setAttribute("tabindex", "0");
      cell.focus();
    };
    around.addEventListener("click", (event) => { if (event.target.matches(".cell")) go(event.target); });
    around.addEventListener("keydown", (event) => {
      const y = rows.findIndex((row) => row.includes(event.target));
      if (y < 0) return;
      const x = rows[y].indexOf(event.target);
      const last = rows[y].length - 1;
      const to = {
        ArrowLeft: [x - 1, y], ArrowRight: [x + 1, y], ArrowUp: [x, y - 1], ArrowDown: [x, y + 1],
        Home: [0, event.ctrlKey ? 0 : y], End: [last, event.ctrlKey ? rows.length - 1 : y],
      }[event.key];
      if (!to) return;
      event.preventDefault();
      const cell = rows[to[1]]?.[to[0]];
      if (cell) go(cell);
    });
  }

  // The table of hosts: sort by a column, show those that have a word, or that are unlike most.
  const table = document.getElementById("host-table");
  if (table) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const order = new Intl.Collator("en", { numeric: true });
    const key = (row, column) => row.cells[column].dataset.sort ?? row.cells[column].textContent;
    all("thead th", table).forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      for (const other of all("thead th", table)) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      rows.sort((a, b) => order.compare(key(a, column), key(b, column)) * (down ? -1 : 1));
      body.append(...rows);
    }));
    const word = document.getElementById("host-filter");
    const odd = document.getElementById("host-odd");
    const show = () => {
      const wanted = word.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        row.hidden = (odd.checked && !row.classList.contains("odd")) || !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      document.getElementById("host-count").textContent = `${shown} of ${rows.length}`;
    };
    word.addEventListener("input", show);
    odd.addEventListener("change", show);
    word.form.addEventListener("submit", (event) => event.preventDefault());
  }
})();
