// Puts a box above each long table, which hides the rows that do not contain its text.
for (const table of document.querySelectorAll("table")) {
  const rows = [...table.tBodies[0].rows];
  if (rows.length < 40) continue;
  const box = document.createElement("input");
  box.type = "search";
  box.placeholder = "filter the rows";
  box.addEventListener("input", () => {
    const wanted = box.value.toLowerCase();
    for (const row of rows) row.hidden = !row.textContent.toLowerCase().includes(wanted);
  });
  table.before(box);
}
