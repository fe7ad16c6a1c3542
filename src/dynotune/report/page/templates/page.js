"use strict";
// A button copies the lines beside it. Without this script, they can be selected.
addEventListener("click", async (event) => {
  const button = event.target.closest("button.copy");
  if (!button) return;
  const lines = button.parentElement.querySelector("pre");
  getSelection().selectAllChildren(lines);
  try {
    await navigator.clipboard.writeText(lines.textContent);
  } catch {
    document.execCommand("copy");
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = "Copy"; }, 1500);
});
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
