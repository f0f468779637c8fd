// Puts a box below the name of each column of a long table. A row is shown if each of its cells
// contains the text in the box of its column.
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 40) continue;
  const boxes = [...table.tHead.rows[0].cells].map((cell) => {
    const box = document.createElement("input");
    box.type = "search";
    box.placeholder = "filter";
    box.style.display = "block";
    cell.append(box);
    return box;
  });
  const contains = (cell, box) =>
    cell.textContent.toLowerCase().includes(box.value.trim().toLowerCase());
  table.tHead.addEventListener("input", () => {
    for (const row of rows) {
      row.hidden = !boxes.every((box, column) => contains(row.cells[column], box));
    }
  });
}
